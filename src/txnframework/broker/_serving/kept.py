"""The segments and subscriptions that a host has open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from txnframework.broker._serving.opening import Opening
from txnframework.broker._serving.segments import OpenSegment, SegmentSubscription
from txnframework.errors import LedgerNotFound
from txnframework.runtime.concurrency import SharedOpenings


class KeptOpen:
    """
    Opens segments and subscriptions on first use and keeps them, as long as the segment is there.

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

        :raises LedgerNotFound: it is not there.
        """
        opened = await self._segments.get(name, lambda: self._open(name))
        if opened.name_may_return and await _is_gone(opened):
            # Deleted, perhaps by another process, which may have made another topic of this name since.
            await self._let_go(opened)
            return await self._segments.get(name, lambda: self._open(name))
        return opened

    async def subscription(self, topic: str, name: str, segment: str) -> SegmentSubscription:
        """
        Return a subscription on one segment.

        :raises LedgerNotFound: the segment is not there.
        """

        async def open_it() -> SegmentSubscription:
            return await self._opening.subscription(topic, name, await self.segment(segment))

        return await self._subscriptions.get((segment, name), open_it)

    @asynccontextmanager
    async def visit(self, name: str) -> AsyncIterator[OpenSegment]:
        """Give a segment that is open, or open it for as long as it is looked at."""
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
        """Close a segment that was deleted."""
        opened = self._segments.opened(name)
        if opened is None:
            self._segments.forget(name)  # it may be being opened
            await self._let_go_of_subscriptions(name)
        elif not opened.name_may_return or await _is_gone(opened):
            await self._let_go(opened)

    async def close(self) -> None:
        """Close everything: what was opened upon something else before it, and whatever of it fails."""
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
        """Close what is open of a segment that was deleted, unless somebody else does; whoever waits there is told."""
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
    """Return whether a segment was deleted, also where another one has its name now."""
    try:
        await opened.ledger.tail()
    except LedgerNotFound:
        return True
    return False
