"""Locks and shared openings, by key, and work on many items at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from txnframework.errors import Closed
from txnframework.runtime.tasks import start_task

K = TypeVar("K", bound=Hashable)


class KeyedLock(Generic[K]):
    """One lock per key, granted in the order of requests; keys without a holder use no memory."""

    def __init__(self) -> None:
        self._locks: dict[K, asyncio.Lock] = {}
        self._requests: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, key: K) -> AsyncIterator[None]:
        """Hold the lock of ``key``."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._requests[key] = self._requests.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._locks[key], self._requests[key]


V = TypeVar("V")


class SharedOpenings(Generic[K, V]):
    """
    Values by key, each opened on first use and kept until ``drain``.

    Concurrent callers share one opening. A failed opening is forgotten, so the next caller tries again. A cancelled
    caller does not cancel the opening for the others.
    """

    def __init__(self) -> None:
        self.open: dict[K, V] = {}
        """The values that are open, for callers that would otherwise call ``get`` for each message."""
        self._opening: dict[K, asyncio.Task[V]] = {}
        self._given_up: frozenset[asyncio.Task[V]] = frozenset()

    async def get(self, name: K, open_it: Callable[[], Awaitable[V]]) -> V:
        """
        Return the value of ``name``, opened by ``open_it`` if it is not open yet.

        :raises Closed: ``drain`` was called during the opening.
        """
        if (already := self.opened(name)) is not None:
            return already
        task = self._opening.get(name)
        if task is None:
            task = start_task(_await(open_it))
            self._opening[name] = task
            task.add_done_callback(lambda done: self._opened(name, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError as error:
            caller = asyncio.current_task()
            if task in self._given_up and not (caller and caller.cancelling()):
                raise Closed(f"{name} was closed while it was being opened") from error
            raise

    def opened(self, name: K) -> V | None:
        """Return the value of ``name`` if it is open."""
        task = self._opening.get(name)
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def names(self) -> tuple[K, ...]:
        """Return the keys of all values that are open or being opened."""
        return tuple(self._opening)

    def values(self) -> tuple[V, ...]:
        """Return all open values."""
        return tuple(value for name in self._opening if (value := self.opened(name)) is not None)

    def forget(self, name: K) -> None:
        """Forget the value of ``name``; the next ``get`` opens it again."""
        self._opening.pop(name, None)
        self.open.pop(name, None)

    async def drain(self) -> tuple[V, ...]:
        """
        Cancel all openings, and return the open values, the last opened first; callers of ``get`` receive ``Closed``.

        Waiting for the openings instead would let an unresponsive store delay the close.
        """
        tasks = list(self._opening.values())
        self._opening = {}
        self.open.clear()
        self._given_up |= {task for task in tasks if not task.done()}
        for task in self._given_up:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return tuple(result for result in reversed(results) if not isinstance(result, BaseException))

    def _opened(self, name: K, task: asyncio.Task[V]) -> None:
        """Keep the value of an opening that has ended, or forget the opening if it has failed."""
        # Reading the exception also keeps asyncio from reporting it when all callers were cancelled.
        failed = task.cancelled() or task.exception() is not None
        if self._opening.get(name) is not task:
            return
        if failed:
            del self._opening[name]
        else:
            self.open[name] = task.result()


async def _await(open_it: Callable[[], Awaitable[V]]) -> V:
    return await open_it()


Item = TypeVar("Item")


async def for_each(
    items: Sequence[Item], work: Callable[[Item], Awaitable[object]], at_once_max: int, *, despite_errors: bool = False
) -> None:
    """
    Run ``work`` for each item, at most ``at_once_max`` at a time, begun in the order of the items.

    After an error no further item is begun, unless ``despite_errors``, and the running ones end first. If several fail,
    the error of the first of them in the order of the items is raised. If the caller is cancelled, the running ones are
    cancelled, and end first.
    """
    if len(items) == 1:
        await work(items[0])
        return
    errors: dict[int, Exception] = {}
    left = iter(enumerate(items))

    async def run() -> None:
        for number, item in left:
            try:
                await work(item)
            except Exception as error:
                errors[number] = error
            if errors and not despite_errors:
                return

    tasks = [start_task(run()) for _ in range(min(at_once_max, len(items)))]
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    for task in tasks:
        task.result()  # raises what is no Exception, such as a cancellation from within
    if errors:
        raise errors[min(errors)]
