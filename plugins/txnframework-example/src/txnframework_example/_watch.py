"""Watches of one notebook."""

from __future__ import annotations

import asyncio

from zope.interface import implementer

from txnframework.errors import Closed
from txnframework.interfaces import IWatch
from txnframework.model import IndexEntry, IndexRange, Key, KeyRange
from txnframework_example._lines import Place, place_of


@implementer(IWatch)
class NotebookWatch:
    """A flag that each change sets, so that no change is missed between two waits."""

    def __init__(self, target: Key | KeyRange | IndexRange) -> None:
        self._target = target
        self._flag = asyncio.Event()
        self._is_closed = False

    async def changed(self) -> None:
        """Return once anything may have changed since arming or since the last return."""
        await self._flag.wait()
        if self._is_closed:
            raise Closed("the watch was closed")
        self._flag.clear()

    async def close(self) -> None:
        """Close the watch; may be repeated."""
        self.end()

    def wake(self) -> None:
        """Make ``changed`` return, now or at its next call."""
        self._flag.set()

    def end(self) -> None:
        """Make ``changed`` raise Closed, now and later."""
        self._is_closed = True
        self._flag.set()

    @property
    def is_closed(self) -> bool:
        """Whether the watch was closed."""
        return self._is_closed

    def concerns(self, place: Place, entries: frozenset[IndexEntry]) -> bool:
        """
        Return whether the watch reports a change of this record.

        :param entries: the record's index entries before and after the change.
        """
        target = self._target
        if isinstance(target, Key):
            return place == place_of(target)
        if isinstance(target, KeyRange):
            return target.start <= place[0] < target.stop and target.partition in (None, place[1])
        return any(one.index == target.index and target.start <= one.key < target.stop for one in entries)
