"""Waiting for watches: for the first of several, or for one of them beside other things."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from txnframework.interfaces import ITellingTailWatch, ITellingWatch, IWatch
from txnframework.model.ledger import LedgerEntry


async def first_of(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    """
    Return when the first of ``waits`` is over, and stop the others; raise what a finished one raised.

    A watch whose wait is stopped stays armed. If it fired at the same moment its hint is used up here, so the caller
    reads everything again, not only what the first one hinted at.
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
    """Give watches back."""
    for watch in watches:
        await watch.close()


class Listening:
    """
    An armed watch that calls ``woken`` when it tells something, so that whoever follows it can wait for more than it.

    Its wait goes on when something else comes first: to stop it and to begin again costs more than what it waits for.
    """

    def __init__(self, watch: IWatch, woken: Callable[[], None]) -> None:
        self._watch = watch
        self._woken = woken
        self._wait: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Call ``woken`` at what it tells from now on, or has told since it was asked last."""
        if self._wait is None:
            self._wait = asyncio.ensure_future(self._watch.changed())
            self._wait.add_done_callback(lambda _: self._woken())

    @property
    def tells(self) -> bool:
        """Whether it may bring along what the watched record became."""
        return bool(ITellingWatch.providedBy(self._watch))

    @property
    def told(self) -> bytes | None:
        """What the watched record became at one of the changes that it told of last, if it brought that along."""
        return self._watch.told if ITellingWatch.providedBy(self._watch) else None

    @property
    def appended(self) -> tuple[LedgerEntry, ...] | None:
        """The entries that it told of last, if they are all that has changed of the watched tail."""
        return self._watch.appended if ITellingTailWatch.providedBy(self._watch) else None

    def has_told(self) -> bool:
        """Return, once, that it told something; raise what its wait ended with."""
        if self._wait is None or not self._wait.done():
            return False
        ended, self._wait = self._wait, None
        ended.result()
        return True

    async def pause(self) -> None:
        """Wait no more until ``listen``; nothing is missed meanwhile."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)
            if not wait.cancelled():
                self._wait = wait  # it had told something

    async def close(self) -> None:
        """Give the watch back."""
        await self.pause()
        await self._watch.close()
