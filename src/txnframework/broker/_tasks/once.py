"""Opening a thing once, however many ask for it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from txnframework.errors import Closed

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class OpenedOnce(Generic[K, V]):
    """
    Things by name, each opened on first use and kept until ``drain``.

    Concurrent callers share one opening. One that fails is forgotten, so that the next caller tries again. A caller
    that is cancelled does not cancel the opening for the others.
    """

    def __init__(self) -> None:
        self._opening: dict[K, asyncio.Task[V]] = {}
        self._given_up: frozenset[asyncio.Task[V]] = frozenset()

    async def get(self, name: K, open_it: Callable[[], Awaitable[V]]) -> V:
        """
        Return the thing called ``name``; ``open_it`` is called if nobody did before.

        :raises Closed: it was given up while it was being opened.
        """
        if (already := self.opened(name)) is not None:
            return already
        task = self._opening.get(name)
        if task is None:
            task = asyncio.ensure_future(_await(open_it))
            self._opening[name] = task
            task.add_done_callback(lambda done: self._forget_failed(name, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError as error:
            caller = asyncio.current_task()
            if task in self._given_up and not (caller and caller.cancelling()):
                raise Closed(f"{name} was closed while it was being opened") from error
            raise

    def opened(self, name: K) -> V | None:
        """Return the thing called ``name`` if it is open by now."""
        task = self._opening.get(name)
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def names(self) -> tuple[K, ...]:
        """Return the names of everything that is open or being opened."""
        return tuple(self._opening)

    def values(self) -> tuple[V, ...]:
        """Return everything that is open by now."""
        return tuple(value for name in self._opening if (value := self.opened(name)) is not None)

    def forget(self, name: K) -> None:
        """Open the thing called ``name`` anew when it is asked for next."""
        self._opening.pop(name, None)

    async def drain(self) -> tuple[V, ...]:
        """
        Stop openings under way, whoever waits for one is told, and give up everything that is open, last opened first.

        Waiting for them instead would let a store that does not answer hold up the close.
        """
        tasks = list(self._opening.values())
        self._opening = {}
        self._given_up |= {task for task in tasks if not task.done()}
        for task in self._given_up:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return tuple(result for result in reversed(results) if not isinstance(result, BaseException))

    def _forget_failed(self, name: K, task: asyncio.Task[V]) -> None:
        # Looking at the exception also keeps asyncio from reporting it when every caller was cancelled.
        if (task.cancelled() or task.exception() is not None) and self._opening.get(name) is task:
            del self._opening[name]


async def _await(open_it: Callable[[], Awaitable[V]]) -> V:
    return await open_it()
