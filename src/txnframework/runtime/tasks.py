"""Tasks: their start, those that outlive the call that started them, and waiting for the first of several."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

from txnframework.environment import Environment
from txnframework.errors import Closed, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.runtime.backoff import Backoff

T = TypeVar("T")


def start_task(work: Awaitable[T], *, name: str | None = None, context: Context | None = None) -> asyncio.Task[T]:
    """
    Start ``work`` as a task whose first step runs after the current step of the caller.

    A program may set ``asyncio.eager_task_factory``. With ``asyncio.create_task`` the first step then runs before that
    call returns: before the caller has kept the task, and before it has done what follows. All code of the framework
    and of its plugins starts its tasks here, which passes over the factory of the program.
    """
    coroutine = work if asyncio.iscoroutine(work) else _await(work)
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        return loop.create_task(coroutine, name=name, context=context)
    return asyncio.Task(coroutine, loop=loop, name=name, context=context)


async def _await(work: Awaitable[T]) -> T:
    return await work


async def until_ended(task: asyncio.Future[Any]) -> None:
    """Wait until a task has ended, whatever its result; a cancelled caller leaves it alone and waits no longer."""
    # Much less work than asyncio.wait. Unlike asyncio.shield, it reports no failure that a later caller receives.
    waiter = asyncio.get_running_loop().create_future()

    def wake(_: asyncio.Future[Any]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)


async def uninterrupted(work: Awaitable[T]) -> T:
    """Return the result of ``work``; a cancelled caller waits for its end as well."""
    task = start_task(work)
    try:
        await until_ended(task)
    except asyncio.CancelledError:
        await ended(task)
        raise
    return task.result()


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Wait until one of the tasks has ended, whatever its result; a cancelled caller waits as well."""
    while not any(task.done() for task in tasks):
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def first_completed(*waits: Awaitable[object]) -> int:
    """
    Return the index of the awaitable that completed first, and cancel the others.

    If several complete together, the lowest index is returned. An exception of the first one is raised.
    """
    tasks = [wait if asyncio.isfuture(wait) else start_task(wait) for wait in waits]
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
        task = start_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all tasks except the caller's own, and return them."""
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        return tasks

    async def stop(self) -> None:
        """Cancel all tasks except the caller's own, and wait for their end."""
        await asyncio.gather(*self.cancel(), return_exceptions=True)

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
            self._task = start_task(self._work())

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
