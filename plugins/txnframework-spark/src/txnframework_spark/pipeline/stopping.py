"""When a pipeline that was asked to stop is stopped: between batches, if they come to an end in time.

However it is stopped nothing is torn: a batch that is given up is a transaction that is aborted, and the next start
runs it again. To let it finish saves that work.
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
    """What is known while a query is asked to stop.

    ``waited_ms``: since it was first asked. ``working``: a batch is under way. ``finished``: one has ended since it was
    asked, so that another may be under way of which nothing is lost yet.
    """

    asked: int
    waited_ms: int
    working: bool
    finished: bool


def is_time_to_stop(now: Moment, timeout_ms: int) -> bool:
    """Whether the query is to be stopped now; asked twice, it does not wait."""
    if not now.asked:
        return False
    return now.asked > 1 or not now.working or now.finished or now.waited_ms >= timeout_ms


class StopRequests:
    """SIGTERM and SIGINT, counted instead of obeyed, until the block ends."""

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
        """Take the signals; once more after Spark has started, which takes SIGINT for itself."""
        for number in _SIGNALS:
            signal.signal(number, self._ask)

    def wait(self, timeout_s: float) -> None:
        """Return after a while, or as soon as one comes."""
        self._woken.wait(timeout_s)
        self._woken.clear()

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number
        self._woken.set()
