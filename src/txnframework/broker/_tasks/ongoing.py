"""Work that goes on by itself from a start to a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Ongoing:
    """One piece of work, run as a task: begun once, however often it is started, and stopped by cancelling it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """Whether it was started, and not stopped since; it may have come to its own end."""
        return self._task is not None

    def start(self) -> None:
        """Begin; once is enough."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._work())

    async def stop(self) -> None:
        """Stop, and wait for its end: what is under way is given up, so every step of the work has to bear that."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
