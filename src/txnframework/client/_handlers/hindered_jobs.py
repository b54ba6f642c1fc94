"""Jobs that wait for something that hinders every message, such as a database that is away."""

from __future__ import annotations

import logging

from txnframework.environment import Environment

_LOG = logging.getLogger("txnframework.client.handlers")
LOG_INTERVAL_MS = 60_000
"""How long the reason is not logged again."""


class HinderedJobs:
    """The jobs of a loop that wait; the reason is logged when the first one begins to wait, and then rarely."""

    def __init__(self, environment: Environment, name: str) -> None:
        self._environment = environment
        self._name = name
        self._jobs: set[object] = set()
        self._next_log_ms: int | None = None
        self._is_logged = False

    def add(self, job: object, error: BaseException | None) -> None:
        """Note that a job waits, and why."""
        self._jobs.add(job)
        now_ms = self._environment.monotonic_ms()
        if self._next_log_ms is None or now_ms >= self._next_log_ms:
            self._next_log_ms = now_ms + LOG_INTERVAL_MS
            self._is_logged = True
            _LOG.warning(
                "%s: messages wait, and no delivery counts, because of %s", self._name, _reason(error), exc_info=error
            )

    def discard(self, job: object) -> None:
        """Note that a job does not wait any more."""
        self._jobs.discard(job)
        if self._is_logged and not self._jobs:
            self._is_logged = False
            _LOG.warning("%s: messages are handled again", self._name)


def _reason(error: BaseException | None) -> str:
    cause = error if error is None or error.__cause__ is None else error.__cause__
    return f"{type(cause).__name__}: {cause}"
