"""Which segments a consumer is attached to: all of its topics', those that come by split or merge included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial

from txnframework.broker import GuardedTasks, Host, Joining, Place, dispatching_lease
from txnframework.client._feed import Feed, Inbox
from txnframework.client._terms import Terms
from txnframework.errors import (
    Closed,
    ConsumerBusy,
    LeaseLost,
    LedgerNotFound,
    SubscriptionOwnedElsewhere,
    TopicNotFound,
)
from txnframework.interfaces import IWatch
from txnframework.model import paths
from txnframework.model.layout import Layout, Segment, SegmentState
from txnframework.model.names import SegmentName, TopicName, parse_name, topic_of


class Membership:
    """
    Attaches a consumer to segments as they come, and detaches it from those that are done.

    Where order matters, children follow when everything of their parents was delivered and is no other consumer's.
    Otherwise all come at once, and a segment that another process dispatches is taken over when that one's lease ends.
    A consumer that stands by waits for that in any case, and again after it lost a lease itself: who dispatches is
    told by the lease alone, and nothing that was delivered under a lease that was lost is acknowledged by that.
    """

    def __init__(
        self,
        host: Host,
        targets: tuple[TopicName | SegmentName, ...],
        terms: Terms,
        inbox: Inbox,
        wake: Callable[[], None],
    ) -> None:
        self.feeds: dict[str, Feed] = {}
        self.layouts: dict[TopicName, Layout] = {}
        self.error: Exception | None = None
        self._host = host
        self._targets = targets
        self._terms = terms
        self._inbox = inbox
        self._wake_consumer = wake
        self._changed = asyncio.Event()
        self._watches: list[IWatch] = []
        self._tasks = GuardedTasks(host.environment, self._failed)
        self._elsewhere: set[str] = set()
        self._moving: set[str] = set()

    async def join(self) -> None:
        """
        Attach to what is there, and follow what comes.

        :raises SubscriptionOwnedElsewhere: another process has a segment, or for an unordered type all of them; never
            for who stands by.
        :raises ConsumerBusy: the subscription takes one consumer only, and has one; never for who stands by.
        """
        try:
            for topic in dict.fromkeys(target.topic for target in self._targets):
                watch = await self._host.topics.watch(topic)
                self._watches.append(watch)
                self._tasks.start(partial(self._at_layout_changes, topic, watch))
            await self._load_layouts()
            await self._attach_all(first=True)
        except BaseException:
            await self.leave()
            raise
        self._tasks.start(self._keep_up)

    async def leave(self) -> None:
        """Detach from everything; what was not acknowledged goes to others."""
        await self._tasks.stop()
        for watch in self._watches:
            await watch.close()
        for feed in self.feeds.values():
            await self._detach(feed)

    def ancestors(self, segment: str) -> tuple[Feed, ...]:
        """Return the feeds of the segments that one descends from, oldest first."""
        name = parse_name(segment)
        layout = self.layouts[name.topic]
        ancestors = layout.ancestors(layout.segment_of(name).id)
        names = (str(layout.name_of(one.id)) for one in reversed(ancestors))
        return tuple(self.feeds[one] for one in names if one in self.feeds)

    @asynccontextmanager
    async def reopening(self, segments: Collection[str]) -> AsyncIterator[None]:
        """
        Move the cursors of these within: someone seeks.

        Those that were done are attached again afterwards. Those that descend from others of them are left before, so
        that they follow these in order.
        """
        self._moving |= set(segments)
        try:
            left = [one for one in segments if self._is_done(one) or self._descends(one, segments)]
            for feed in [self.feeds.pop(one) for one in left if one in self.feeds]:
                await self._detach(feed)
            yield
        finally:
            self._moving -= set(segments)
            self._changed.set()
        await self._attach_all(first=False)

    def _is_done(self, segment: str) -> bool:
        return segment in self.feeds and self.feeds[segment].finished

    def _descends(self, segment: str, segments: Collection[str]) -> bool:
        return self._terms.follows_order and any(one.place.segment in segments for one in self.ancestors(segment))

    def wanted(self) -> tuple[str, ...]:
        """Return the names of all segments, parents before children."""
        return tuple(name for name, _, _ in self._wanted())

    def poke(self) -> None:
        """Something changed that may let segments come or go."""
        self._changed.set()
        self._wake_consumer()

    async def _load_layouts(self) -> None:
        for target in self._targets:
            topic = target.topic
            self.layouts[topic] = await self._host.topics.finish_changes(topic)
            if isinstance(target, SegmentName):
                self.layouts[topic].segment_of(target)

    async def _at_layout_changes(self, topic: TopicName, watch: IWatch) -> None:
        while True:
            await watch.changed()
            layout = await self._host.topics.layout(topic)
            before = self.layouts.get(topic)
            if before is not None and layout.life != before.life:
                raise TopicNotFound(str(topic), deleted=True)
            self.layouts[topic] = layout
            self._changed.set()

    async def _keep_up(self) -> None:
        while True:
            self._changed.clear()
            for feed in tuple(self.feeds.values()):
                if feed.error is not None and feed.attached is not None:
                    await self._step_back(feed, feed.error)
                if feed.done and not feed.finished:
                    feed.finished = True
                    await self._detach(feed)
            await self._attach_all(first=False)
            await self._changed.wait()

    async def _attach_all(self, first: bool) -> None:
        refused: SubscriptionOwnedElsewhere | None = None
        for segment_name, topic, segment in self._wanted():
            if self._has(segment_name) or not self._may_follow(topic, segment):
                continue
            try:
                await self._attach(str(topic), segment_name)
            except SubscriptionOwnedElsewhere as error:
                if first and self._terms.follows_order and not self._terms.stand_by:
                    raise
                refused = error
                self._wait_for(segment_name)
            except ConsumerBusy:
                if not self._terms.stand_by:
                    raise
                self._wait_for(segment_name)
        if first and refused is not None and not self.feeds and not self._terms.stand_by:
            raise refused

    def _has(self, segment: str) -> bool:
        """Return whether there is nothing to do: it is attached, was finished, is waited for, or its cursor moves."""
        feed = self.feeds.get(segment)
        return segment in self._elsewhere or segment in self._moving or (feed is not None and not feed.lost)

    def _wait_for(self, segment: str) -> None:
        self._elsewhere.add(segment)
        self._tasks.start(partial(self._until_free, segment))

    async def _step_back(self, feed: Feed, error: Exception) -> None:
        """
        The dispatch of a feed has ended: stand by, if that is what was asked for and the lease was lost.

        Messages that the user has seen can be acknowledged all the same, as any process may do.
        """
        segment = feed.place.segment
        life = self.layouts[topic_of(segment)].life
        deleting = self._host.topics.deleting
        if isinstance(error, LedgerNotFound | Closed) and await deleting.is_deleted(segment, life):
            raise TopicNotFound(feed.place.topic, deleted=True) from error
        if not isinstance(error, LeaseLost):
            raise error
        if not self._terms.stand_by:
            advice = (
                "open the consumer again, or one that stands by, as failover does, and waits for its turn by itself"
            )
            raise LeaseLost(error.name, advice) from error
        await self._detach(feed)
        feed.lost, feed.error = True, None
        # What descends from it was delivered behind messages that others may get now.
        for one in [
            feed for name, feed in self.feeds.items() if not feed.finished and self._descends(name, (segment,))
        ]:
            await self._detach(one)
            one.lost, one.error = True, None

    def _wanted(self) -> list[tuple[str, TopicName, Segment]]:
        """
        All segments of the targets, parents before children.

        A child that is only planned has nothing in it and may have no ledger yet: it comes with the change's end.
        """
        wanted: list[tuple[str, TopicName, Segment]] = []
        for target in self._targets:
            topic = target.topic
            layout = self.layouts[topic]
            for segment in layout.in_order():
                name = layout.name_of(segment.id)
                made = all(layout.segments[parent].state is SegmentState.REPLACED for parent in segment.parents)
                if made and (isinstance(target, TopicName) or name == target):
                    wanted.append((str(name), topic, segment))
        return wanted

    def _may_follow(self, topic: TopicName, segment: Segment) -> bool:
        if not self._terms.follows_order or topic not in self._targets:
            return True
        layout = self.layouts[topic]
        feeds = [self.feeds.get(str(layout.name_of(parent))) for parent in segment.parents]
        return all(feed is not None and feed.may_be_followed for feed in feeds)

    def _follows(self, segment: str) -> bool:
        """Return whether the segments before one are still this consumer's; their leases may have ended meanwhile."""
        return not self._terms.follows_order or all(feed.holds for feed in self.ancestors(segment))

    async def _attach(self, topic: str, segment: str) -> None:
        terms = self._terms
        place = Place(topic, terms.subscription, segment, terms.type)
        feed = Feed(place, self._inbox, self.poke, partial(self._follows, segment))
        joining = Joining(terms.name, self._host.config.client.receive_messages_max, terms.priority)
        lost = self.feeds.get(segment)
        self.feeds[segment] = feed
        try:
            feed.attached = await self._host.dispatches.attach(feed.place, joining, feed.listener())
        except BaseException:
            if lost is None:
                del self.feeds[segment]
            else:
                self.feeds[segment] = lost
            raise
        finally:
            feed.tried.set()

    async def _detach(self, feed: Feed) -> None:
        attached, feed.attached = feed.attached, None
        if attached is not None:
            await self._host.dispatches.detach(attached, self._inbox.purge(feed))

    async def _until_free(self, segment: str) -> None:
        """Try again when the lease of whoever dispatches a segment has ended."""
        key = paths.lease_key(dispatching_lease(segment, self._terms.subscription))
        watch = await self._host.metadata.watch(key)
        try:
            while await self._host.metadata.get(key) is not None:
                await watch.changed()
        finally:
            await watch.close()
        self._elsewhere.discard(segment)
        self._changed.set()

    def _failed(self, error: Exception) -> None:
        self.error = self.error or error
        self._wake_consumer()
