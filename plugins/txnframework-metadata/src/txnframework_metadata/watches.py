"""Watches: the first of several, or one watch among other events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from txnframework.interfaces import IAppendedWatch, IValueWatch, IWatch
from txnframework.model.ledger import LedgerEntry


async def first_of(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    """
    Return when the first of ``waits`` completes, and cancel the others; raise the exception of a completed one.

    A watch whose wait is cancelled stays armed. If it fired at the same moment, its hint is lost. The caller must
    therefore read everything again, not only the data that the first hint names.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def close_all(watches: Iterable[IWatch]) -> None:
    """Close all watches."""
    for watch in watches:
        await watch.close()


class WatchListener:
    """
    An armed watch that calls ``woken`` when it fires, so that its owner can wait for other events too.

    The wait continues when another event arrives first, because cancelling and restarting a wait costs more than
    keeping it.
    """

    def __init__(self, watch: IWatch, woken: Callable[[], None]) -> None:
        self._watch = watch
        self._woken = woken
        self._wait: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Call ``woken`` when the watch fires, also for a change since it was last asked."""
        if self._wait is None:
            self._wait = asyncio.ensure_future(self._watch.changed())
            self._wait.add_done_callback(lambda _: self._woken())

    @property
    def carries_values(self) -> bool:
        """Whether the watch may report the new value of the watched record."""
        return bool(IValueWatch.providedBy(self._watch))

    @property
    def value(self) -> bytes | None:
        """The value of the watched record at one of the changes last reported; None if unknown."""
        return self._watch.value if IValueWatch.providedBy(self._watch) else None

    @property
    def appended(self) -> tuple[LedgerEntry, ...] | None:
        """The entries last reported, if they are the only change of the watched tail; otherwise None."""
        return self._watch.appended if IAppendedWatch.providedBy(self._watch) else None

    def has_fired(self) -> bool:
        """Return True once after the watch has fired; raise the exception of its wait."""
        if self._wait is None or not self._wait.done():
            return False
        ended, self._wait = self._wait, None
        ended.result()
        return True

    async def pause(self) -> None:
        """Stop waiting until ``listen`` is called; no change is missed meanwhile."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)
            if not wait.cancelled():
                self._wait = wait  # the watch had fired

    async def close(self) -> None:
        """Close the watch."""
        await self.pause()
        await self._watch.close()
