"""Work that nobody waits for until the host closes, bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from txnframework.broker._tasks.waiting import first_of
from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError

Work = Callable[[], Coroutine[Any, Any, object]]


class Background:
    """
    Runs what may also be left undone, because somebody finds it again later: settling, above all.

    It begins after ``delay_ms``, so that it does not compete for processors with those who are told of what was done
    just now. At most ``at_once_max`` pieces run and ``waiting_max`` wait; a piece beyond that is dropped. What fails
    with an error of the framework is dropped too; any other exception is a defect and goes to the loop's exception
    handler.
    """

    def __init__(self, environment: Environment, delay_ms: int, at_once_max: int, waiting_max: int) -> None:
        self._environment = environment
        self._delay_ms = delay_ms
        self._slots = asyncio.Semaphore(at_once_max)
        self._tasks_max = at_once_max + waiting_max
        # With when they may begin; in that order.
        self._held: deque[tuple[int, Work]] = deque()
        self._letting_go: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Work) -> bool:
        """Run ``work`` soon; return False if there is too much waiting already."""
        if len(self._tasks) + len(self._held) >= self._tasks_max:
            return False
        if not self._delay_ms:
            self._begin(work)
            return True
        self._held.append((self._environment.now_ms() + self._delay_ms, work))
        if self._letting_go is None:
            self._letting_go = asyncio.ensure_future(self._let_go())
        return True

    async def finish(self, timeout_ms: int) -> None:
        """Wait for everything that was started, at most so long, and stop the rest; nothing is held back any more."""
        self._delay_ms = 0
        if self._letting_go is not None:
            self._letting_go.cancel()
        while self._held:
            self._begin(self._held.popleft()[1])
        due_ms = self._environment.now_ms() + timeout_ms
        while self._tasks and self._environment.now_ms() < due_ms:
            await first_of(asyncio.wait(tuple(self._tasks)), self._environment.sleep_until(due_ms))
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(tuple(self._tasks))

    async def _let_go(self) -> None:
        """Begin with what was held for long enough, until nothing is held."""
        while self._held:
            await self._environment.sleep_until(self._held[0][0])
            now_ms = self._environment.now_ms()
            while self._held and self._held[0][0] <= now_ms:
                self._begin(self._held.popleft()[1])
        self._letting_go = None

    def _begin(self, work: Work) -> None:
        task = asyncio.ensure_future(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._done)

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
