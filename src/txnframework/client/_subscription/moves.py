"""Moves of a subscription to another position: seeks by this consumer, and those by others that it notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from txnframework.broker import Host
from txnframework.client._seek_positions import Target, partly_moved, sought
from txnframework.client._subscription.attachments import SegmentAttachments
from txnframework.client._subscription.feed import Feed
from txnframework.client._subscription.segments import FollowedSegments
from txnframework.errors import NotFound, Unavailable
from txnframework.model.names import parse_name


class CursorMoves:
    """
    Moves the cursors of a consumer's segments, and attaches it again where others have moved them.

    ``changed`` is set when segments may have to be attached. ``attach_all`` attaches them; who calls it holds
    ``passing``.
    """

    def __init__(
        self,
        host: Host,
        segments: FollowedSegments,
        attachments: SegmentAttachments,
        changed: asyncio.Event,
        passing: asyncio.Lock,
        attach_all: Callable[[], Awaitable[None]],
    ) -> None:
        self._host = host
        self._segments = segments
        self._attachments = attachments
        self._changed = changed
        self._passing = passing
        self._attach_all = attach_all

    async def seek(self, subscription: str, to: Target) -> None:
        """
        Move the subscription; see ``Consumer.seek``. Seeks must not overlap.

        :raises OutcomeUnknown: some cursors were moved, and others were not.
        """
        segments = self._segments
        moving = await sought(self._host, segments.layouts.values(), segments.names(), to)
        # Excludes passes over all segments: one of them could finish a segment, by what was acknowledged before, while
        # its cursor is moved. Its descendants would then be received before it.
        async with self._passing, self._reopening(moving):
            moved = False
            for segment, position in moving.items():
                try:
                    topic = str(segments.layout_of(segment).topic)
                    subscribed = await self._host.subscription(topic, subscription, segment)
                    await subscribed.cursor.seek(position)
                    moved = True
                    feed = segments.feeds.get(segment)
                    if feed is not None and feed.attached is not None:
                        await feed.attached.dispatch.refresh()
                except Unavailable as error:
                    if not moved:
                        raise
                    raise partly_moved(subscription, segment) from error

    @asynccontextmanager
    async def _reopening(self, segments: Collection[str]) -> AsyncIterator[None]:
        """
        Run a seek of these segments' cursors.

        Finished segments are attached again afterwards. Segments that descend from other moved segments are detached
        before, so that they follow their ancestors in order.
        """
        feeds, moving = self._segments.feeds, self._attachments.moving
        moving |= set(segments)
        try:
            # What is being attached cannot be detached, and would be attached after its feed was removed.
            for feed in [feeds[one] for one in segments if one in feeds]:
                await feed.tried.wait()
            left = [
                one for one in segments if self._segments.is_finished(one) or self._segments.descends(one, segments)
            ]
            for feed in [feeds.pop(one) for one in left if one in feeds]:
                await self._attachments.detach(feed)
            yield
        finally:
            moving -= set(segments)
            self._changed.set()
        try:
            await self._attach_all()
        except BaseException:
            self._changed.set()  # the membership retries the segments that could not be attached
            raise

    async def go_back_before(self, segment: str, feed: Feed) -> None:
        """
        Detach finished ancestors of a segment whose cursors were moved, so that they are attached again.

        No process dispatches a finished segment. A seek of it is noticed by its descendants, whose cursors are moved
        too.
        """
        feed.sought = False
        try:
            moved = await self._moved_before(segment)
        except BaseException:
            feed.sought = True
            raise
        if not moved or self._attachments.moving:
            return  # a seek by this consumer attaches them again
        feeds = self._segments.feeds
        left = moved | {one for one in feeds if self._segments.descends(one, moved)}
        for gone in [feeds[one] for one in left if one in feeds]:
            await self._attachments.detach(gone)
            gone.renounce()
            gone.finished, gone.lost, gone.error = False, True, None

    async def _moved_before(self, segment: str) -> set[str]:
        """Return the finished ancestors of a segment whose cursors were moved after they were finished."""
        moved: set[str] = set()
        layout = self._segments.layout_of(segment)
        for parent in layout.segment_of(parse_name(segment)).parents:
            before = str(layout.name_of(parent))
            feed = self._segments.feeds.get(before)
            if feed is not None and feed.finished and await self._is_moved(feed):
                moved |= {before} | await self._moved_before(before)
        return moved

    async def _is_moved(self, feed: Feed) -> bool:
        place = feed.place
        try:
            found = await self._host.subscription(place.topic, place.subscription, place.segment)
            return (await found.cursor.load()).incarnation != feed.incarnation
        except NotFound:
            return False  # removed by retention, or deleted with its topic or subscription
