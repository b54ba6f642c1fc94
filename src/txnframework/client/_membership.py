"""Which segments a consumer is attached to: all of its topics', those that come by split or merge included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from txnframework.broker import Host, Joining, Place, RetryingTasks, dispatching_lease
from txnframework.client._feed import Feed, Inbox, Missed
from txnframework.client._terms import Terms
from txnframework.errors import (
    Closed,
    ConsumerBusy,
    LeaseLost,
    NotFound,
    SubscriptionOwnedElsewhere,
    TopicNotFound,
)
from txnframework.interfaces import IWatch
from txnframework.model import paths
from txnframework.model.layout import Layout, Segment
from txnframework.model.names import SegmentName, TopicName, parse_name, topic_of
from txnframework.runtime.backoff import Backoff

RETAKE_DELAY_MS = 100
RETAKE_DELAY_MS_MAX = 5_000
"""The longest wait before a lease that was lost twice, or many times in a row, is asked for again."""
KEPT_MS = 10_000
"""A lease that was held for so long before it was lost does not count as lost in a row."""


class Membership:
    """
    Attaches a consumer to segments as they come, and detaches it from those that are done.

    Where order matters, children follow when everything of their parents was delivered and is no other consumer's.
    Otherwise all come at once, and a segment that another process dispatches is taken over when that one's lease ends.
    A consumer that stands by waits for that in any case. One that lost a lease takes it again, or waits until it can:
    who dispatches is told by the lease alone, and nothing that was delivered under a lease that was lost is
    acknowledged by that.
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
        self._in_order = terms.follows_order
        self._inbox = inbox
        self._wake_consumer = wake
        self._changed = asyncio.Event()
        self._watches: list[IWatch] = []
        self._tasks = RetryingTasks(host.environment, self._failed)
        self._elsewhere: set[str] = set()
        self._moving: set[str] = set()
        # Where an earlier consumer of the same name was to be replaced already.
        self._tried: set[str] = set()
        # When each segment's lease was lost last, and how often in a row.
        self._losses: dict[str, tuple[int, int]] = {}

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
        """Detach from everything, whatever of it fails; what was not acknowledged goes to others. May be repeated."""
        await self._tasks.stop()
        async with AsyncExitStack() as last_first:
            # Attaching and detaching that the tasks were stopped in: the host brings them to their ends.
            keys = [feed.place.key for feed in self.feeds.values()]
            keys += [(segment, self._terms.subscription) for segment in self.wanted()]
            last_first.push_async_callback(self._host.steps.abandoned_ended, keys)
            for watch in self._watches:
                last_first.push_async_callback(watch.close)
            for feed in self.feeds.values():
                last_first.push_async_callback(self._detach, feed)

    def ancestors(self, segment: str) -> tuple[Feed, ...]:
        """Return the feeds of the segments that one descends from, oldest first."""
        name = parse_name(segment)
        return self._feeds_before(name.topic, self.layouts[name.topic].segment_of(name).id)

    def _feeds_before(self, topic: TopicName, segment_id: int) -> tuple[Feed, ...]:
        layout = self.layouts[topic]
        names = (str(layout.name_of(one.id)) for one in reversed(layout.ancestors(segment_id)))
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
        try:
            await self._attach_all(first=False)
        except BaseException:
            self._changed.set()  # what could not be attached again is tried by what keeps up
            raise

    def _is_done(self, segment: str) -> bool:
        return segment in self.feeds and self.feeds[segment].finished

    def _descends(self, segment: str, segments: Collection[str]) -> bool:
        return self._in_order and any(one.place.segment in segments for one in self.ancestors(segment))

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
                    await feed.finish()
                    await self._detach(feed)
            for segment, feed in tuple(self.feeds.items()):
                if feed.sought:
                    await self._go_back_before(segment, feed)
            await self._attach_all(first=False)
            await self._changed.wait()

    async def _go_back_before(self, segment: str, feed: Feed) -> None:
        """
        Leave finished segments before this one to which somebody sought, so that they are attached again.

        Nobody dispatches a finished segment, so its seek is noticed by what descends from it, which is moved as well.
        """
        feed.sought = False
        try:
            moved = await self._moved_before(segment)
        except BaseException:
            feed.sought = True
            raise
        if not moved or self._moving:
            return  # whoever seeks by this consumer attaches them again
        left = moved | {one for one in self.feeds if self._descends(one, moved)}
        for gone in [self.feeds[one] for one in left if one in self.feeds]:
            await self._detach(gone)
            gone.renounce()
            gone.finished, gone.lost, gone.error = False, True, None

    async def _moved_before(self, segment: str) -> set[str]:
        """Return the finished segments that this one descends from, and whose cursors were moved since they were."""
        moved: set[str] = set()
        name = parse_name(segment)
        layout = self.layouts[name.topic]
        for parent in layout.segment_of(name).parents:
            before = str(layout.name_of(parent))
            feed = self.feeds.get(before)
            if feed is not None and feed.finished and await self._is_moved(feed):
                moved |= {before} | await self._moved_before(before)
        return moved

    async def _is_moved(self, feed: Feed) -> bool:
        place = feed.place
        try:
            found = await self._host.subscription(place.topic, place.subscription, place.segment)
            return (await found.cursor.load()).incarnation != feed.incarnation
        except NotFound:
            return False  # retention removed it, or it goes with its topic or subscription

    async def _attach_all(self, first: bool) -> None:
        refused: SubscriptionOwnedElsewhere | None = None
        for segment_name, topic, segment in self._wanted():
            if self._has(segment_name) or not self._may_follow(topic, segment):
                continue
            # A segment that this consumer only follows to may have another consumer already, as after a merge.
            refuses = first and not self._terms.stand_by and self._is_asked_for(segment_name)
            try:
                await self._attach(segment_name, topic, segment)
            except SubscriptionOwnedElsewhere as error:
                if refuses and self._in_order:
                    raise
                refused = error
                self._wait_for(segment_name)
            except ConsumerBusy:
                if refuses:
                    raise
                self._wait_for(segment_name)
        if first and refused is not None and not self.feeds and not self._terms.stand_by:
            raise refused

    def _is_asked_for(self, segment: str) -> bool:
        """Return whether the caller named this segment or its topic."""
        name = parse_name(segment)
        return name in self._targets or name.topic in self._targets

    def _has(self, segment: str) -> bool:
        """Return whether there is nothing to do: it is attached, was finished, is waited for, or its cursor moves."""
        feed = self.feeds.get(segment)
        return segment in self._elsewhere or segment in self._moving or (feed is not None and not feed.lost)

    def _wait_for(self, segment: str) -> None:
        self._elsewhere.add(segment)
        self._tasks.start(partial(self._until_free, segment))

    async def _step_back(self, feed: Feed, error: Exception) -> None:
        """
        The dispatch of a feed has ended: if its lease was lost, try to hold it again, unless the caller wants to know.

        What was delivered under it comes again. Messages that the user has seen can be acknowledged all the same, as
        any process may do.
        """
        segment = feed.place.segment
        life = self.layouts[topic_of(segment)].life
        deleting = self._host.topics.deleting
        if isinstance(error, NotFound | Closed) and await deleting.is_deleted(segment, life):
            raise TopicNotFound(feed.place.topic, deleted=True) from error
        if not isinstance(error, LeaseLost):
            raise error
        if not self._terms.retakes:
            advice = "open the consumer again, or leave stand_by=False out: it then takes the lease again by itself"
            raise LeaseLost(error.name, advice) from error
        await self._lose(feed)
        self._hold_back(segment)
        # What descends from it was delivered behind messages that others may get now.
        for one in [
            feed for name, feed in self.feeds.items() if not feed.finished and self._descends(name, (segment,))
        ]:
            await self._lose(one)

    async def _lose(self, feed: Feed) -> None:
        feed.lose()
        await self._detach(feed)
        feed.lost, feed.error = True, None

    def _hold_back(self, segment: str) -> None:
        """A lease that is lost again and again is not asked for at once: a store that cannot keep it is not pressed."""
        environment = self._host.environment
        lost_ms, losses = self._losses.get(segment, (0, 0))
        now_ms = environment.now_ms()
        losses = losses + 1 if now_ms - lost_ms < KEPT_MS else 1
        self._losses[segment] = now_ms, losses
        if losses > 1:
            self._elsewhere.add(segment)
            self._tasks.start(partial(self._ask_later, segment, losses - 1))

    async def _ask_later(self, segment: str, failures: int) -> None:
        await Backoff(self._host.environment, RETAKE_DELAY_MS, RETAKE_DELAY_MS_MAX).pause(failures)
        self._elsewhere.discard(segment)
        self._changed.set()

    def _wanted(self) -> list[tuple[str, TopicName, Segment]]:
        """
        All segments of the targets, parents before children.

        A child that is only planned has nothing in it and may have no ledger yet: it comes with the change's end.
        """
        return [
            (str(layout.name_of(segment.id)), topic, segment)
            for topic, layout in self.layouts.items()
            for segment in self._wanted_of(layout)
        ]

    def _wanted_of(self, layout: Layout) -> tuple[Segment, ...]:
        """
        Return the segments of one topic to attach to.

        A segment that the caller named is followed to those that descend from it. Where order matters they come after
        all of their parents: so what was merged with a segment belongs to them too, and what that one descends from.
        """
        made = [layout.segments[one] for one in layout.made()]
        if layout.topic in self._targets:
            return tuple(made)
        wanted: set[int] = set()
        for named in [one for one in self._targets if one.topic == layout.topic]:
            root = layout.segment_of(named)
            descendants = layout.descendants(root.id)
            wanted |= {root.id, *(one.id for one in descendants)}
            if self._in_order:
                before = {one.id for one in layout.ancestors(root.id)}
                wanted |= {one.id for child in descendants for one in layout.ancestors(child.id)} - before
        return tuple(segment for segment in made if segment.id in wanted)

    def _may_follow(self, topic: TopicName, segment: Segment) -> bool:
        if not self._in_order:
            return True
        layout = self.layouts[topic]
        wanted = {one.id for one in self._wanted_of(layout)}
        feeds = [self.feeds.get(str(layout.name_of(parent))) for parent in segment.parents if parent in wanted]
        return all(feed is not None and feed.may_be_followed for feed in feeds)

    def _follows(self, topic: TopicName, segment: Segment) -> bool:
        """Return whether the segments before one are still this consumer's; their leases may have ended meanwhile."""
        if not self._in_order or not segment.parents:
            return True
        return all(feed.holds for feed in self._feeds_before(topic, segment.id))

    async def _attach(self, segment: str, topic: TopicName, at: Segment) -> None:
        """Attach to a segment, by its full name, that is at this place of the topic's layout."""
        terms = self._terms
        place = Place(str(topic), terms.subscription, segment, terms.type.name)
        # Once for each segment: two consumers of one name that both live would take it from each other for ever.
        replaces = terms.named and segment not in self._tried
        self._tried.add(segment)
        permits = self._host.config.client.receive_messages_max
        joining = Joining(terms.name, permits, terms.priority, terms.named, replaces)
        lost = self.feeds.get(segment)
        missed = Missed(self._host) if lost is None else lost.missed
        feed = Feed(place, self._inbox, self._wake_consumer, self.poke, partial(self._follows, topic, at), missed)
        self.feeds[segment] = feed
        try:
            await self._host.dispatches.attach(feed.place, joining, feed.listener(), feed.attach_to)
        except BaseException:
            feed.withdraw()
            feed.attached = None  # if it came to that, the host takes it back
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
