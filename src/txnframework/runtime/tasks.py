"""Tasks that outlive the call that started them, and waiting for the first of several."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from txnframework.environment import Environment
from txnframework.errors import Closed, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.runtime.backoff import Backoff


async def first_completed(*waits: Awaitable[object]) -> int:
    """
    Return the index of the awaitable that completed first, and cancel the others.

    If several complete together, the lowest index is returned. An exception of the first one is raised.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        came = [task.done() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    first = came.index(True)
    tasks[first].result()
    return first


QueuedWork = Callable[[], Coroutine[Any, Any, object]]


class BackgroundQueue:
    """
    A bounded queue of optional work: work that a sweep finds again if it is dropped, above all settling.

    Work starts after ``delay_ms``, so that it does not compete for the processor with callers that wait. At most
    ``at_once_max`` items run and ``waiting_max`` wait; further items are dropped. An item that fails with an error of
    the framework is dropped too. Any other exception is a defect, and goes to the loop's exception handler.
    """

    def __init__(self, environment: Environment, delay_ms: int, at_once_max: int, waiting_max: int) -> None:
        self._environment = environment
        self._delay_ms = delay_ms
        self._slots = asyncio.Semaphore(at_once_max)
        self._tasks_max = at_once_max + waiting_max
        # Each item with the time at which it may start, in that order.
        self._held: deque[tuple[int, QueuedWork]] = deque()
        self._delayed_starts: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: QueuedWork) -> bool:
        """Run ``work`` soon; return False if the queue is full."""
        if len(self._tasks) + len(self._held) >= self._tasks_max:
            return False
        if not self._delay_ms:
            self._begin(work)
            return True
        self._held.append((self._environment.now_ms() + self._delay_ms, work))
        if self._delayed_starts is None:
            self._delayed_starts = asyncio.ensure_future(self._start_delayed())
        return True

    async def finish(self, timeout_ms: int) -> None:
        """Start all delayed items, wait at most ``timeout_ms`` for all items, and cancel the rest."""
        self._delay_ms = 0
        if self._delayed_starts is not None:
            self._delayed_starts.cancel()
        while self._held:
            self._begin(self._held.popleft()[1])
        due_ms = self._environment.now_ms() + timeout_ms
        while self._tasks and self._environment.now_ms() < due_ms:
            await first_completed(asyncio.wait(tuple(self._tasks)), self._environment.sleep_until(due_ms))
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(tuple(self._tasks))

    async def _start_delayed(self) -> None:
        """Start each item when its delay has passed, until none is left."""
        while self._held:
            await self._environment.sleep_until(self._held[0][0])
            now_ms = self._environment.now_ms()
            while self._held and self._held[0][0] <= now_ms:
                self._begin(self._held.popleft()[1])
        self._delayed_starts = None

    def _begin(self, work: QueuedWork) -> None:
        task = asyncio.ensure_future(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _run(self, work: QueuedWork) -> None:
        async with self._slots:
            try:
                await work()
            except TxnFrameworkError:
                return

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "background work failed", "exception": error})


RETRY_DELAY_MS = 100
RETRY_DELAY_MS_MAX = 1_000
"""The longest wait before a retry after the first failure, and after many failures."""

Work = Callable[[], Awaitable[None]]


class RetryingTasks:
    """Runs work and retries it after temporary errors; any other error ends that work and is reported to ``failed``."""

    def __init__(self, environment: Environment, failed: Callable[[Exception], None]) -> None:
        self._backoff = Backoff(environment, RETRY_DELAY_MS, RETRY_DELAY_MS_MAX)
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Work) -> None:
        """Run ``work`` as a task."""
        task = asyncio.ensure_future(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel all tasks except the caller's own, and wait for their end."""
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, work: Work) -> None:
        failures = 0
        while True:
            try:
                await work()
            except (Unavailable, OutcomeUnknown):
                failures += 1
                await self._backoff.pause(failures)
            except Exception as error:
                self._failed(error)
                return
            else:
                return


RESTART_DELAY_MS = 1_000
"""The longest wait before work restarts after the store was unavailable."""


class BackgroundTask:
    """Work that runs as one task; ``start`` is idempotent, ``stop`` cancels the task."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """Whether it was started and not stopped since. The work may have ended by itself."""
        return self._task is not None

    def start(self) -> None:
        """Start the task; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._work())

    async def stop(self) -> None:
        """Cancel the task and wait for its end. Each step of the work must tolerate cancellation."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


async def repeat_until_closed(work: Callable[[], Awaitable[None]], environment: Environment) -> None:
    """
    Repeat ``work`` until it raises ``Closed``.

    After another error of the framework, ``work`` restarts within ``RESTART_DELAY_MS``. Any other exception is a defect
    and is raised.
    """
    backoff = Backoff(environment, RESTART_DELAY_MS, RESTART_DELAY_MS)
    while True:
        try:
            await work()
        except Closed:
            return
        except TxnFrameworkError:
            await backoff.pause(1)
