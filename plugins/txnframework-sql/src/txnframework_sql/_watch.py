"""Watches: commits of this store wake them immediately, and its wake-ups do so after commits of other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from zope.interface import implementer

from txnframework.errors import Closed
from txnframework.interfaces import IWatch
from txnframework.model.metadata import IndexRange, Key, KeyRange
from txnframework_sql.steps.statements import Change, Executor, LedgerChange, Target, concerns, partition_of

# A notification may carry many names: to read again costs less than to compare so many.
_COMPARED_MAX = 100_000


@implementer(IWatch)
class Watch:
    """An armed watch on one target; it signals that the watcher must read again, and carries no data."""

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
        """
        Remove the watch.

        A waiting ``changed`` raises Closed. Idempotent.
        """
        self.end()

    def wake(self) -> None:
        """Make ``changed`` return."""
        self._woken.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and on later calls."""
        self.is_closed = True
        self._woken.set()
        self._watches.remove(self)


class WakeUps(Protocol):
    """
    Wakes the watches of one store after commits of other processes: SQLite is polled, PostgreSQL notifies.

    After every commit of another process, each watch that was armed before and is concerned is woken. Everything that
    may have hidden a commit wakes it as well.
    """

    async def arm(self, watch: Watch) -> None:
        """Return once no later commit escapes the watch, which is already among the armed ones."""

    def disarm(self, watch: Watch) -> None:
        """Remove a watch; an unknown one is ignored."""

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which a caller waits; outside any such context, wake-ups may be delayed."""

    async def close(self) -> None:
        """Stop; idempotent."""


class Watches:
    """The armed watches of one store; ``wake_ups`` creates their wake-ups after commits of other processes."""

    def __init__(self, executor: Executor, wake_ups: Callable[[Watches], WakeUps]) -> None:
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        # A dict, so that watches are woken in the order in which they were armed.
        self._armed: dict[Watch, None] = {}
        # The same by group, so that a change is compared with few of them: a consumer has watches for each segment.
        self._groups: dict[Hashable, dict[Watch, None]] = {}
        # The changes of this turn of the loop.
        self._coming: dict[Change, None] = {}
        self._is_closed = False
        self._wake_ups = wake_ups(self)
        executor.observe(self._observe)

    @property
    def armed(self) -> Collection[Watch]:
        """The armed watches, in the order in which they were armed."""
        return self._armed.keys()

    async def arm(self, target: Target) -> Watch:
        """Return a watch that no later change escapes."""
        self._require_open()
        watch = Watch(self, target)
        # First the commits of this store, then those of others: a commit in between only causes one extra wake-up.
        self._armed[watch] = None
        self._groups.setdefault(_group_of(target), {})[watch] = None
        try:
            await self._wake_ups.arm(watch)
            self._require_open()
        except BaseException:
            watch.end()
            raise
        return watch

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which commits of other processes wake watches."""
        return self._wake_ups.waiting()

    def wake(self, changes: Collection[Change]) -> None:
        """Wake the watches that the changes concern."""
        by_group: dict[Hashable, list[Change]] = {}
        for change in changes:
            for group in _groups_of(change):
                if group in self._groups:
                    by_group.setdefault(group, []).append(change)
        if sum(len(some) * len(self._groups[group]) for group, some in by_group.items()) > _COMPARED_MAX:
            self.wake_all()
            return
        for group, some in by_group.items():
            for watch in tuple(self._groups[group]):
                if any(concerns(watch.target, change) for change in some):
                    watch.wake()

    def wake_all(self) -> None:
        """Wake every watch: the missed changes are unknown."""
        for watch in tuple(self._armed):
            watch.wake()

    def wake_part(self, part: int, parts: int) -> None:
        """Wake one of ``parts`` equal parts of the watches: changes may have been missed."""
        for watch in tuple(self._armed)[part::parts]:
            watch.wake()

    def remove(self, watch: Watch) -> None:
        """Remove a watch; an unknown one is ignored."""
        if watch in self._armed:
            del self._armed[watch]
            group = _group_of(watch.target)
            self._groups[group].pop(watch)
            if not self._groups[group]:
                del self._groups[group]
        self._wake_ups.disarm(watch)

    async def close(self) -> None:
        """End every watch; idempotent."""
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
        # This may run on the thread of a database: only check here, and do the rest in the loop of the store.
        if not self._armed:
            return
        if _is_running(self._loop):
            if not self._coming:
                self._loop.call_soon(self._wake_coming)
            self._coming.update(dict.fromkeys(changes))
            return
        # The loop's own thread may close it at any moment; then no task waits in it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.wake, changes)

    def _wake_coming(self) -> None:
        coming, self._coming = self._coming, {}
        self.wake(coming)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this is called in the thread in which the loop runs."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _group_of(target: Target) -> Hashable:
    """Return the group of a watch: its ledger or record, its index, or all ranges of keys."""
    if isinstance(target, Key):
        return target.path, partition_of(target)
    if isinstance(target, IndexRange):
        return target.index
    return KeyRange if isinstance(target, KeyRange) else target


def _groups_of(change: Change) -> set[Hashable]:
    """Return the groups that have all watches that a change may concern."""
    if isinstance(change, LedgerChange):
        return {change}
    return {(change.path, change.partition), KeyRange, *(entry.index for entry in change.indexes)}
