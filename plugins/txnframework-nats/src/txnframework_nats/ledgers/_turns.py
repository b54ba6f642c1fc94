"""How processes that write to one log at the same time take turns: pauses after refusals, and requests to wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.environment import Environment
from txnframework.runtime.backoff import Backoff
from txnframework_nats.ledgers._records import Asked, LogRecord

_PAUSE_MS_MAX = 1_000
_HOLD_MS = 30
_RETRY_MS = 1
_RETRY_MS_MAX = 250


class TurnQueue:
    """
    The turns of one log in this process. ``round_ms``: about the time that a record takes to be stored.

    Whether anybody waits decides nothing: a record is stored only directly behind what its process has read.
    """

    def __init__(self, environment: Environment) -> None:
        self.retries = Backoff(environment, _RETRY_MS, _RETRY_MS_MAX)
        self._environment = environment
        self._round_ms = 1.0
        self._asked = b""
        self._last: Asked | None = None

    def measure(self, round_s: float) -> None:
        """Take the time of one round into account."""
        self._round_ms = (self._round_ms + 1_000 * round_s) / 2

    def applied(self, content: LogRecord) -> None:
        """Take note of the last record of the log."""
        self._last = content if isinstance(content, Asked) else None

    async def pause(self, refusals: int) -> None:
        """Wait after a refusal: many writers that all try again disturb each other, and the one that is storing."""
        await Backoff(self._environment, max(1, round(self._round_ms)), _PAUSE_MS_MAX).pause(refusals)

    async def pause_for_one(self) -> None:
        """Wait until a record that another process is storing is probably stored."""
        await self._environment.sleep_until(self._environment.now_ms() + max(1, round(self._round_ms)))

    async def wait_for_others(self) -> None:
        """Wait if another process has asked for that with the last record of the log."""
        last, self._last = self._last, None
        if last is not None and last.token != self._asked:
            now_ms = self._environment.now_ms()
            await self._environment.sleep_until(now_ms + min(last.hold_ms, _HOLD_MS))

    async def ask(self, token: bytes, store: Callable[[Asked], Awaitable[None]]) -> None:
        """
        Ask the others to wait, so that the next record of this process is not outrun by theirs.

        Without this, a process that appends all the time keeps out the processes farther away, and also a seal.
        """
        self._asked = token
        await store(Asked(token, _HOLD_MS))
