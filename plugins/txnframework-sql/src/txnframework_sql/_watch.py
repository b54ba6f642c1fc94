"""Watches: woken at once by commits of this store, and by its wake-ups for those of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from zope.interface import implementer

from txnframework.errors import Closed
from txnframework.interfaces import IWatch
from txnframework_sql._database import Executor
from txnframework_sql.steps.changes import Change, Target, concerns

# Anybody may notify as many names as fit: to read again costs less than to compare so many.
_COMPARED_MAX = 100_000


@implementer(IWatch)
class Watch:
    """An armed watch on one target; it says that the watcher has to read again, and brings nothing along."""

    def __init__(self, watches: Watches, target: Target) -> None:
        self.target = target
        self._watches = watches
        self._woken = asyncio.Event()
        self.is_closed = False

    async def changed(self) -> None:
        """Return once anything may have changed since arming or since the last return; see IWatch."""
        if not self._woken.is_set():
            with self._watches.waiting():
                await self._woken.wait()
        if self.is_closed:
            raise Closed("the watch was closed")
        self._woken.clear()

    async def close(self) -> None:
        """Give the watch back; a waiting ``changed`` raises Closed; may be repeated."""
        self.end()

    def wake(self) -> None:
        """Make ``changed`` return."""
        self._woken.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        self.is_closed = True
        self._woken.set()
        self._watches.remove(self)


class WakeUps(Protocol):
    """
    How the watches of one store hear of what others commit: SQLite's are looked for, PostgreSQL's are notified.

    Every commit of another process is followed by a wake-up of each watch that it concerns and that was armed before.
    So is everything that may have hidden one.
    """

    async def arm(self, watch: Watch) -> None:
        """Return when no commit from now on escapes the watch, which is among the armed ones already."""

    def disarm(self, watch: Watch) -> None:
        """Forget a watch; an unknown one is fine."""

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which somebody waits; outside any of them nothing need be heard yet."""

    async def close(self) -> None:
        """Stop; may be repeated."""


class Watches:
    """The armed watches of one store; ``wake_ups`` makes what they hear of the commits of others by."""

    def __init__(self, executor: Executor, wake_ups: Callable[[Watches], WakeUps]) -> None:
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        # A dict, so that watches are woken in the order in which they were armed.
        self._armed: dict[Watch, None] = {}
        self._is_closed = False
        self._wake_ups = wake_ups(self)
        executor.observe(self._observe)

    @property
    def armed(self) -> Collection[Watch]:
        """The watches that are to be woken, in the order in which they were armed."""
        return self._armed.keys()

    async def arm(self, target: Target) -> Watch:
        """Return a watch that no change from now on escapes."""
        self._require_open()
        watch = Watch(self, target)
        # First the commits of this store, then those of others: what comes in between wakes once too often.
        self._armed[watch] = None
        try:
            await self._wake_ups.arm(watch)
            self._require_open()
        except BaseException:
            watch.end()
            raise
        return watch

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which the commits of others are heard of."""
        return self._wake_ups.waiting()

    def wake(self, changes: Collection[Change]) -> None:
        """Wake whom changes concern."""
        if len(changes) * len(self._armed) > _COMPARED_MAX:
            self.wake_all()
            return
        for watch in tuple(self._armed):
            if any(concerns(watch.target, change) for change in changes):
                watch.wake()

    def wake_all(self) -> None:
        """Wake every watch: it is unknown what was missed."""
        for watch in tuple(self._armed):
            watch.wake()

    def remove(self, watch: Watch) -> None:
        """Forget a watch; an unknown one is fine."""
        self._armed.pop(watch, None)
        self._wake_ups.disarm(watch)

    async def close(self) -> None:
        """End every watch; may be repeated."""
        self._is_closed = True
        self._executor.ignore(self._observe)
        for watch in tuple(self._armed):
            watch.end()
        await self._wake_ups.close()

    def _require_open(self) -> None:
        self._executor.require_open()
        if self._is_closed:
            raise Closed(f"the store {self._executor.shown_url} is being closed, and its watches with it")

    def _observe(self, changes: tuple[Change, ...]) -> None:
        # Perhaps on the thread of a database: only a glance here, the rest in the loop of the store.
        if self._armed:
            # The loop may have been closed, by its own thread and at any moment; then nobody waits in it.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.wake, changes)
