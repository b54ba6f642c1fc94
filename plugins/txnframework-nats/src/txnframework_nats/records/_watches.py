"""Watches: woken by the changes that the feed delivers, and after a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from zope.interface import implementer

from txnframework.errors import Closed
from txnframework.interfaces import IValueWatch, IWatch
from txnframework.model import IndexRange, Key, KeyRange
from txnframework_nats.records._copy import RecordChange
from txnframework_nats.records._layout import RecordID, record_id

Target = Key | KeyRange | IndexRange


def concerns(target: Target, change: RecordChange) -> bool:
    """Return whether a change wakes a watch on ``target``."""
    if isinstance(target, Key):
        return record_id(target) == (change.path, change.partition)
    if isinstance(target, KeyRange):
        inside = target.start <= change.path < target.stop
        return inside and target.partition in (None, change.partition)
    if change.indexes is None:
        return True
    return any(entry.index == target.index and target.start <= entry.key < target.stop for entry in change.indexes)


@implementer(IWatch)
class RecordsWatch:
    """An armed watch on a range of records, or of entries of an index."""

    def __init__(self, watches: RecordWatches, target: Target) -> None:
        self.target = target
        self._watches = watches
        self._woken = asyncio.Event()
        self._is_closed = False

    async def changed(self) -> None:
        """Return once anything may have changed since arming or since the last return; see IWatch."""
        await self._woken.wait()
        if self._is_closed:
            raise Closed("the watch was closed")
        self._woken.clear()

    async def close(self) -> None:
        """Close the watch; a waiting ``changed`` raises Closed; may be repeated."""
        self.end()

    def wake(self, changes: Sequence[RecordChange] | None) -> None:  # noqa: ARG002 - for the watch of one record
        """Make ``changed`` return for these changes; None: changes may have been missed."""
        self._woken.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        self._is_closed = True
        self._woken.set()
        self._watches.remove(self)


@implementer(IValueWatch)
class ValueWatch(RecordsWatch):
    """A watch on one record, with the value of its last change, which this process has read from the stream."""

    def __init__(self, watches: RecordWatches, target: Key) -> None:
        super().__init__(watches, target)
        self.value: bytes | None = None
        self._coming: bytes | None = None

    async def changed(self) -> None:
        """Return once the record may have changed; see IValueWatch."""
        await super().changed()
        self.value, self._coming = self._coming, None

    def wake(self, changes: Sequence[RecordChange] | None) -> None:
        """Make ``changed`` return for these changes; None: changes may have been missed."""
        self._coming = None if changes is None else changes[-1].value
        super().wake(changes)


class RecordWatches:
    """The armed watches of one opening; those on one record are found by its place."""

    def __init__(self) -> None:
        # Dicts, so that watches are woken in the order in which they were armed.
        self._ranges: dict[RecordsWatch, None] = {}
        self._records: dict[RecordID, dict[RecordsWatch, None]] = {}
        self._is_closed = False

    def arm(self, target: Target) -> RecordsWatch:
        """Return a watch that each change wakes which the feed delivers from now on."""
        if self._is_closed:
            raise Closed("the store was closed")
        if isinstance(target, Key):
            watch: RecordsWatch = ValueWatch(self, target)
            self._records.setdefault(record_id(target), {})[watch] = None
        else:
            watch = RecordsWatch(self, target)
            self._ranges[watch] = None
        return watch

    def remove(self, watch: RecordsWatch) -> None:
        """Remove a watch; an unknown one is ignored."""
        if not isinstance(watch.target, Key):
            self._ranges.pop(watch, None)
            return
        place = record_id(watch.target)
        armed = self._records.get(place, {})
        armed.pop(watch, None)
        if not armed:
            self._records.pop(place, None)

    def notify(self, changes: Sequence[RecordChange]) -> None:
        """Wake the watches that the changes concern."""
        for change in changes:
            for watch in tuple(self._records.get((change.path, change.partition), ())):
                watch.wake((change,))
        for watch in tuple(self._ranges):
            if any(concerns(watch.target, change) for change in changes):
                watch.wake(changes)

    def wake_all(self) -> None:
        """Wake every watch: changes may have been missed."""
        for watch in self._all():
            watch.wake(None)

    def close(self) -> None:
        """End every watch."""
        self._is_closed = True
        for watch in self._all():
            watch.end()

    def _all(self) -> list[RecordsWatch]:
        return [*self._ranges, *(watch for armed in self._records.values() for watch in armed)]
