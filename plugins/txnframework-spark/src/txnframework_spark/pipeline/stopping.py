"""The decision when to stop a pipeline on request: between batches, if the current batch finishes in time.

A stop at any time leaves no partial result: the transaction of an interrupted batch is aborted, and the next start runs
the batch again. Waiting for the batch only saves that work.
"""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of a query after a stop request.

    ``waited_ms``: since the first request. ``working``: a batch is running. ``finished``: a batch has finished since
    the request, so the next one may be interrupted before it has done much work.
    """

    asked: int
    waited_ms: int
    working: bool
    finished: bool


def is_time_to_stop(now: Moment, timeout_ms: int) -> bool:
    """Return whether to stop the query now; a second request does not wait."""
    if not now.asked:
        return False
    return now.asked > 1 or not now.working or now.finished or now.waited_ms >= timeout_ms


class StopRequests:
    """Counts SIGTERM and SIGINT instead of ending the process, until the block ends."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None
        self._woken = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Install the handlers; call it again after the start of Spark, which replaces that of SIGINT."""
        for number in _SIGNALS:
            signal.signal(number, self._ask)

    def wait(self, timeout_s: float) -> None:
        """Wait for ``timeout_s``, or until a request arrives."""
        self._woken.wait(timeout_s)
        self._woken.clear()

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number
        self._woken.set()
