"""Work that nobody waits for until the host closes, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from txnframework.errors import TxnFrameworkError

Work = Callable[[], Coroutine[Any, Any, object]]


class Background:
    """
    Runs what may also be left undone, because somebody finds it again later: settling, above all.

    At most ``at_once_max`` pieces run and ``waiting_max`` wait; a piece beyond that is dropped. What fails with an
    error of the framework is dropped too; any other exception is a defect and goes to the loop's exception handler.
    """

    def __init__(self, at_once_max: int, waiting_max: int) -> None:
        self._slots = asyncio.Semaphore(at_once_max)
        self._tasks_max = at_once_max + waiting_max
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Work) -> bool:
        """Run ``work`` soon; return False if there is too much waiting already."""
        if len(self._tasks) >= self._tasks_max:
            return False
        task = asyncio.ensure_future(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return True

    async def finish(self) -> None:
        """Wait for everything that was started."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, work: Work) -> None:
        async with self._slots:
            try:
                await work()
            except TxnFrameworkError:
                return

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "background work failed", "exception": error})
