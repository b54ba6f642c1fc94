"""The cache of open segments and subscriptions of a host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from txnframework.broker._serving.opening import Opening
from txnframework.broker._serving.segments import OpenSegment, SegmentSubscription
from txnframework.errors import LedgerNotFound
from txnframework.runtime.concurrency import SharedOpenings


class KeptOpen:
    """
    Opens segments and subscriptions on first use, and keeps them while the segment exists.

    ``opened`` is called whenever a segment was opened.
    """

    def __init__(self, opening: Opening, opened: Callable[[], None]) -> None:
        self._opening = opening
        self._opened = opened
        self._segments: SharedOpenings[str, OpenSegment] = SharedOpenings()
        self._subscriptions: SharedOpenings[tuple[str, str], SegmentSubscription] = SharedOpenings()

    async def segment(self, name: str) -> OpenSegment:
        """
        Return a segment by its full name.

        :raises LedgerNotFound: the segment does not exist.
        """
        opened = await self._segments.get(name, lambda: self._open(name))
        if opened.name_may_return and await _is_gone(opened):
            # It was deleted, perhaps by another process, and a new topic may exist under the same name.
            await self._let_go(opened)
            return await self._segments.get(name, lambda: self._open(name))
        return opened

    async def subscription(self, topic: str, name: str, segment: str) -> SegmentSubscription:
        """
        Return a subscription on one segment.

        :raises LedgerNotFound: the segment does not exist.
        """

        async def open_it() -> SegmentSubscription:
            return await self._opening.subscription(topic, name, await self.segment(segment))

        return await self._subscriptions.get((segment, name), open_it)

    @asynccontextmanager
    async def visit(self, name: str) -> AsyncIterator[OpenSegment]:
        """Yield the open segment, or open the segment for the duration of the block only."""
        opened = self._segments.opened(name)
        if opened is not None:
            yield opened
            return
        visited = await self._open(name)
        try:
            yield visited
        finally:
            await _close(visited)

    async def let_go_of(self, name: str) -> None:
        """Close a deleted segment."""
        opened = self._segments.opened(name)
        if opened is None:
            self._segments.forget(name)  # its opening may be in progress
            await self._let_go_of_subscriptions(name)
        elif not opened.name_may_return or await _is_gone(opened):
            await self._let_go(opened)

    async def close(self) -> None:
        """Close all subscriptions, then all segments, even if some of them fail."""
        subscriptions, segments = await self._subscriptions.drain(), await self._segments.drain()
        async with AsyncExitStack() as last_first:
            for segment in segments:
                last_first.push_async_callback(segment.ledger.close)
                last_first.push_async_callback(segment.buffer.close)
            for subscription in subscriptions:
                last_first.push_async_callback(subscription.pending_acks.close)

    async def _open(self, name: str) -> OpenSegment:
        opened = await self._opening.segment(name)
        self._opened()
        return opened

    async def _let_go(self, opened: OpenSegment) -> None:
        """
        Close a deleted segment and its subscriptions, unless another task does; callers that wait on them get errors.
        """
        if self._segments.opened(opened.name) is opened:
            self._segments.forget(opened.name)
            await self._let_go_of_subscriptions(opened.name)
            await _close(opened)

    async def _let_go_of_subscriptions(self, segment: str) -> None:
        for key in self._subscriptions.names():
            if key[0] == segment:
                subscription = self._subscriptions.opened(key)
                self._subscriptions.forget(key)
                if subscription is not None:
                    await subscription.pending_acks.close()


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
