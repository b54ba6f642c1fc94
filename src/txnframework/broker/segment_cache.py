"""The segments and subscriptions that a host has open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from txnframework.broker.segment_opener import SegmentOpener
from txnframework.broker.segments import OpenSegment, SegmentSubscription
from txnframework.errors import LedgerNotFound
from txnframework.runtime.concurrency import SharedOpenings

LATEST_LIFE = 1 << 62
"""A life later than any: a segment that was opened before its topic migrated is opened again."""


class SegmentCache:
    """
    Opens segments and subscriptions on first use, and keeps them while the segment exists.

    ``require_open`` raises Closed if the host is closed. ``opened`` is called whenever a segment was opened.
    """

    def __init__(self, opener: SegmentOpener, require_open: Callable[[], None], opened: Callable[[], None]) -> None:
        self._opener = opener
        self._require_open = require_open
        self._opened = opened
        self._segments: SharedOpenings[str, OpenSegment] = SharedOpenings()
        self._subscriptions: SharedOpenings[tuple[str, str], SegmentSubscription] = SharedOpenings()
        # What was open when its topic migrated: at most once for each migration.
        self._former: list[OpenSegment] = []
        self._former_subscriptions: list[SegmentSubscription] = []

    async def segment(self, name: str, life: int | None = None) -> OpenSegment:
        """
        Return a segment by its full name.

        ``life``: that of the topic to which the caller thinks it belongs; a segment that was opened in an earlier life
        is opened again. Without it, a segment of a topic that has just migrated for the first time may be as before.

        :raises LedgerNotFound: the segment does not exist.
        :raises Closed: the segment is not open, and the host was closed.
        """
        opened = self._segments.open.get(name)
        if opened is None:
            self._require_open()
            opened = await self._segments.get(name, lambda: self._open(name))
        if _may_be_outdated(opened, life) and await self._is_not_current(opened):
            return await self._segments.get(name, lambda: self._open(name))
        return opened

    async def _is_not_current(self, opened: OpenSegment) -> bool:
        """
        Return whether an open segment must be opened again, and release it.

        It was deleted, perhaps by another process, and a new topic may exist under the same name; or its topic has
        migrated. After a migration, the users of the former object leave it when they notice the new layout. Until
        then it stays open: what they can still do, any process may do.
        """
        try:
            tail = await opened.ledger.tail()
        except LedgerNotFound:
            await self._release(opened)
            return True
        if not tail.sealed or not await self._opener.is_outdated(opened):
            return False
        if self._segments.opened(opened.name) is opened:
            self._segments.forget(opened.name)
            self._former.append(opened)
            for key in self._subscriptions.names():
                former = self._subscriptions.opened(key) if key[0] == opened.name else None
                if former is not None:
                    self._former_subscriptions.append(former)
                    self._subscriptions.forget(key)
        return True

    async def subscription(self, topic: str, name: str, segment: str, life: int | None = None) -> SegmentSubscription:
        """
        Return a subscription on one segment of a topic, or of a topic that it has become; see ``segment``.

        :raises LedgerNotFound: the segment does not exist.
        """
        opened = await self.segment(segment, life)  # after a migration, this forgets the former subscriptions
        if str(opened.topic) != topic:
            opened = await self.segment(segment, LATEST_LIFE)

        async def open_it() -> SegmentSubscription:
            return await self._opener.subscription(name, opened)

        key = (segment, name)
        found = await self._subscriptions.get(key, open_it)
        while found.life < opened.life:  # its opening began before the topic migrated
            if self._subscriptions.opened(key) is found:
                self._subscriptions.forget(key)
                self._former_subscriptions.append(found)
            found = await self._subscriptions.get(key, open_it)
        return found

    @asynccontextmanager
    async def visit(
        self, name: str, life: int | None = None, *, may_have_lost_end: bool = False
    ) -> AsyncIterator[OpenSegment]:
        """
        Yield the open segment, or open the segment for the duration of the block only; ``life``: see ``segment``.

        :param may_have_lost_end: open it for this block even if it ends before an acknowledgment of it; its ledger then
            refuses every change.
        """
        opened = None if may_have_lost_end else self._segments.opened(name)
        if opened is not None and not (_may_be_outdated(opened, life) and await self._is_not_current(opened)):
            yield opened
            return
        visited = await self._open(name, may_have_lost_end=may_have_lost_end)
        try:
            yield visited
        finally:
            await _close(visited)

    @asynccontextmanager
    async def visit_subscription(self, name: str, segment: str, life: int) -> AsyncIterator[SegmentSubscription]:
        """Yield the open subscription on a segment, or open it for the duration of the block only."""
        async with self.visit(segment, life) as visited:
            # Only now: a subscription of a segment whose topic has migrated is forgotten.
            opened = self._subscriptions.opened((segment, name))
            if opened is not None and opened.life >= visited.life:
                yield opened
                return
            subscription = await self._opener.subscription(name, visited)
            try:
                yield subscription
            finally:
                await subscription.pending_acks.close()

    async def release(self, name: str) -> None:
        """Close a deleted segment."""
        opened = self._segments.opened(name)
        if opened is None:
            self._segments.forget(name)  # its opening may be in progress
            await self._release_subscriptions(name)
        elif not opened.name_may_return or await _is_gone(opened):
            await self._release(opened)

    async def close(self) -> None:
        """Close all subscriptions, then all segments, even if some of them fail."""
        self._segments.open.clear()  # from now on, ``segment`` raises Closed
        subscriptions = [*await self._subscriptions.drain(), *self._former_subscriptions]
        segments = [*await self._segments.drain(), *self._former]
        async with AsyncExitStack() as last_first:
            for segment in segments:
                last_first.push_async_callback(segment.ledger.close)
                last_first.push_async_callback(segment.buffer.close)
            for subscription in subscriptions:
                last_first.push_async_callback(subscription.pending_acks.close)

    async def _open(self, name: str, *, may_have_lost_end: bool = False) -> OpenSegment:
        opened = await self._opener.segment(name, may_have_lost_end=may_have_lost_end)
        self._opened()
        return opened

    async def _release(self, opened: OpenSegment) -> None:
        """
        Close a deleted segment and its subscriptions, unless another task does so. Callers that wait on them get
        errors.
        """
        if self._segments.opened(opened.name) is opened:
            self._segments.forget(opened.name)
            await self._release_subscriptions(opened.name)
            await _close(opened)

    async def _release_subscriptions(self, segment: str) -> None:
        for key in self._subscriptions.names():
            if key[0] == segment:
                subscription = self._subscriptions.opened(key)
                self._subscriptions.forget(key)
                if subscription is not None:
                    await subscription.pending_acks.close()


def _may_be_outdated(opened: OpenSegment, life: int | None) -> bool:
    return opened.name_may_return or (life is not None and opened.life < life)


async def _close(segment: OpenSegment) -> None:
    await segment.buffer.close()
    await segment.ledger.close()


async def _is_gone(opened: OpenSegment) -> bool:
    """Return whether a segment was deleted, even if another segment has its name now."""
    try:
        await opened.ledger.tail()
    except LedgerNotFound:
        return True
    return False
