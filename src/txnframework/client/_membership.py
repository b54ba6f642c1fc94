"""The segments that a consumer is attached to: all segments of its topics, including later children."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from txnframework.broker import AttachRequest, Host, RetryingTasks, SubscriptionRef, dispatching_lease
from txnframework.client._division import Division
from txnframework.client._feed import ConsumerOptions, Feed, Inbox, LostLeaseMessages
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
from txnframework.model.layout import Layout, Segment, SegmentState
from txnframework.model.names import SegmentName, TopicName, parse_name, topic_of
from txnframework.runtime.backoff import Backoff

RETAKE_DELAY_MS = 100
RETAKE_DELAY_MS_MAX = 5_000
"""The longest wait before a lease is requested again after it was lost twice, and after many losses in a row."""
KEPT_MS = 10_000
"""A lease that was held for this long does not count as lost in a row."""


class Membership:
    """
    Attaches a consumer to segments as they appear, and detaches it from finished ones.

    For ordered types, a child is attached when its parents' messages have all been delivered and no other consumer has
    any of them. For unordered types, all segments are attached at once. A segment that another process dispatches is
    then taken over when that lease ends.

    If processes share the subscription, a consumer attaches only to the segments that its process is to dispatch
    (``Division``). It gives the others up: it hands out nothing more of them, waits a bounded time until the messages
    that it handed out are acknowledged, and detaches as after a lost lease. So every rule for lost leases holds.

    A consumer that stands by always waits for the lease. A consumer that lost a lease takes it again, or waits until it
    can. The lease alone decides which process dispatches. Taking it again acknowledges none of the messages delivered
    under a lost lease.
    """

    def __init__(
        self,
        host: Host,
        targets: tuple[TopicName | SegmentName, ...],
        options: ConsumerOptions,
        inbox: Inbox,
        wake: Callable[[], None],
    ) -> None:
        self.feeds: dict[str, Feed] = {}
        self.layouts: dict[TopicName, Layout] = {}
        self.error: Exception | None = None
        self._host = host
        self._targets = targets
        self._options = options
        self._in_order = options.follows_order
        self._inbox = inbox
        self._wake_consumer = wake
        self._changed = asyncio.Event()
        self._watches: list[IWatch] = []
        self._tasks = RetryingTasks(host.environment, self._failed)
        self._elsewhere: set[str] = set()
        self._moving: set[str] = set()
        # The segments where replacing an earlier consumer of the same name was already tried.
        self._tried: set[str] = set()
        # For each segment: the time of the last lease loss, and the number of losses in a row.
        self._losses: dict[str, tuple[int, int]] = {}
        topics = tuple(dict.fromkeys(target.topic for target in targets))
        self._division = Division(host, options, topics, self._changed.set) if options.shares else None

    async def join(self) -> None:
        """
        Attach to the existing segments, and follow layout changes.

        :raises SubscriptionOwnedElsewhere: another process dispatches a segment or, for an unordered type, all of them.
            Not raised for a consumer that stands by.
        :raises ConsumerBusy: the type allows one consumer only, and the subscription has one. Not raised for a consumer
            that stands by.
        """
        try:
            for topic in dict.fromkeys(target.topic for target in self._targets):
                watch = await self._host.topics.watch(topic)
                self._watches.append(watch)
                self._tasks.start(partial(self._at_layout_changes, topic, watch))
            if self._division is not None:
                await self._division.join()
            await self._load_layouts()
            await self._attach_all(first=True)
        except BaseException:
            await self.leave()
            raise
        self._tasks.start(self._keep_up)

    async def leave(self) -> None:
        """
        Detach from all segments, even if some detachments fail. A second call is allowed.

        Unacknowledged messages go to other consumers.
        """
        await self._tasks.stop()
        async with AsyncExitStack() as last_first:
            # The host completes attachments and detachments during which the tasks were stopped.
            keys = [feed.place.key for feed in self.feeds.values()]
            keys += [(segment, self._options.subscription) for segment in self.wanted()]
            last_first.push_async_callback(self._host.steps.abandoned_ended, keys)
            for watch in self._watches:
                last_first.push_async_callback(watch.close)
            for feed in self.feeds.values():
                last_first.push_async_callback(self._detach, feed)
            if self._division is not None:
                # First of all, so that the others expect nothing more of this process.
                last_first.push_async_callback(self._division.leave)

    def ancestors(self, segment: str) -> tuple[Feed, ...]:
        """Return the feeds of a segment's ancestors, oldest first."""
        name = parse_name(segment)
        return self._feeds_before(name.topic, self.layouts[name.topic].segment_of(name).id)

    def _feeds_before(self, topic: TopicName, segment_id: int) -> tuple[Feed, ...]:
        layout = self.layouts[topic]
        names = (str(layout.name_of(one.id)) for one in reversed(layout.ancestors(segment_id)))
        return tuple(self.feeds[one] for one in names if one in self.feeds)

    @asynccontextmanager
    async def reopening(self, segments: Collection[str]) -> AsyncIterator[None]:
        """
        Run a seek of these segments' cursors.

        Finished segments are attached again afterwards. Segments that descend from other moved segments are detached
        before, so that they follow their ancestors in order.
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
            self._changed.set()  # ``_keep_up`` retries the segments that could not be attached
            raise

    def _is_done(self, segment: str) -> bool:
        return segment in self.feeds and self.feeds[segment].finished

    def _descends(self, segment: str, segments: Collection[str]) -> bool:
        return self._in_order and any(one.place.segment in segments for one in self.ancestors(segment))

    def wanted(self) -> tuple[str, ...]:
        """Return the names of all segments, parents before children."""
        return tuple(name for name, _, _ in self._wanted())

    def poke(self) -> None:
        """Check soon whether segments have to be attached or detached."""
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
            if self._division is not None:
                await self._divide(self._division)
                await self._give_up(self._division)
            await self._attach_all(first=False)
            await self._changed.wait()

    async def _divide(self, division: Division) -> None:
        """Divide the segments that are not finished; for ordered types, only those whose parents are finished."""
        for topic, layout in self.layouts.items():
            for name, segment in self._named(layout):
                if segment.state is SegmentState.REPLACED and not self._is_done(name):
                    await self._look_whether_finished(division, topic, name)
        # Nothing is awaited from here on, so that all decisions are about one state.
        for topic, layout in self.layouts.items():
            left = {segment.id: name for name, segment in self._named(layout) if not self._is_done(name)}
            ready = [
                name
                for segment_id, name in left.items()
                if not self._in_order or not any(parent in left for parent in layout.segments[segment_id].parents)
            ]
            division.divide(topic, ready)

    def _named(self, layout: Layout) -> list[tuple[str, Segment]]:
        return [(str(layout.name_of(one.id)), one) for one in self._wanted_of(layout)]

    async def _look_whether_finished(self, division: Division, topic: TopicName, segment: str) -> None:
        """Mark a sealed segment as finished if other processes have finished it and left."""
        feed = self.feeds.get(segment)
        if segment in self._moving or division.is_dispatched(topic, segment):
            return
        if feed is not None and not feed.lost:
            return
        incarnation = await division.finished_at(topic, segment)
        if incarnation is not None and self.feeds.get(segment) is feed and segment not in self._moving:
            at = self.layouts[topic].segment_of(parse_name(segment))
            found = self._new_feed(segment, topic, at)
            found.finish_unseen(incarnation)
            self.feeds[segment] = found

    async def _give_up(self, division: Division) -> None:
        """
        Give up the segments that other processes are to dispatch, each together with its descendants here.

        What is handed out of a descendant follows the messages of the segment, which are redelivered elsewhere.
        """
        now_ms = self._host.environment.now_ms()
        leaving = {name for name, feed in self.feeds.items() if self._is_given_up(division, name, feed)}
        leaving |= {name for name, feed in self.feeds.items() if feed.is_running and self._descends(name, leaving)}
        for name, feed in tuple(self.feeds.items()):
            if name in leaving and feed.given_up_ms is None:
                until_ms = now_ms + self._host.config.subscriptions.handover_timeout_ms
                feed.retire(until_ms)
                self._tasks.start(partial(self._look_again_at, until_ms))
            elif name not in leaving and feed.given_up_ms is not None:
                if feed.attached is not None and feed.is_running:
                    await feed.attached.dispatch.keep()
                feed.given_up_ms = None
        for name in reversed(self.wanted()):  # descendants first
            followed = any(feed.is_running and self._descends(one, (name,)) for one, feed in self.feeds.items())
            if name in leaving and not followed and self.feeds[name].is_quiet(now_ms):
                await self._lose(self.feeds[name])

    def _is_given_up(self, division: Division, segment: str, feed: Feed) -> bool:
        if feed.attached is None or not feed.is_running or not feed.attached.dispatch.may_be_given_up:
            return False
        return division.gives_up(topic_of(segment), segment)

    async def _look_again_at(self, due_ms: int) -> None:
        await self._host.environment.sleep_until(due_ms)
        self._changed.set()

    async def _go_back_before(self, segment: str, feed: Feed) -> None:
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
        if not moved or self._moving:
            return  # a seek by this consumer attaches them again
        left = moved | {one for one in self.feeds if self._descends(one, moved)}
        for gone in [self.feeds[one] for one in left if one in self.feeds]:
            await self._detach(gone)
            gone.renounce()
            gone.finished, gone.lost, gone.error = False, True, None

    async def _moved_before(self, segment: str) -> set[str]:
        """Return the finished ancestors of a segment whose cursors were moved after they were finished."""
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
            return False  # removed by retention, or deleted with its topic or subscription

    async def _attach_all(self, first: bool) -> None:
        refused: SubscriptionOwnedElsewhere | None = None
        division = self._division
        if division is not None and first:
            await self._divide(division)
        for segment_name, topic, segment in self._wanted():
            if self._has(segment_name) or not self._may_follow(topic, segment):
                continue
            if division is not None and not division.takes(topic, segment_name):
                continue
            # A segment that this consumer reached by following may already have another consumer, as after a merge.
            refuses = first and not self._options.stand_by and self._is_asked_for(segment_name)
            try:
                await self._attach(segment_name, topic, segment)
            except SubscriptionOwnedElsewhere as error:
                if division is not None:
                    continue  # another process was faster; the change of its lease leads to the next attempt
                if refuses and self._in_order:
                    raise
                refused = error
                self._wait_for(segment_name)
            except ConsumerBusy:
                if refuses:
                    raise
                self._wait_for(segment_name)
            except LeaseLost as error:
                self._require_retakes(error)
                self._hold_back(segment_name)
                self._changed.set()
        if first and refused is not None and not self.feeds and not self._options.stand_by:
            raise refused

    def _is_asked_for(self, segment: str) -> bool:
        """Return whether the caller named this segment or its topic."""
        name = parse_name(segment)
        return name in self._targets or name.topic in self._targets

    def _has(self, segment: str) -> bool:
        """Return whether a segment needs no attachment: attached, finished, waited for, or being moved."""
        feed = self.feeds.get(segment)
        return segment in self._elsewhere or segment in self._moving or (feed is not None and not feed.lost)

    def _wait_for(self, segment: str) -> None:
        self._elsewhere.add(segment)
        self._tasks.start(partial(self._until_free, segment))

    async def _step_back(self, feed: Feed, error: Exception) -> None:
        """
        Handle the end of a dispatch; after a lost lease, take the lease again unless ``retakes`` is False.

        Messages delivered under that lease are redelivered. The user can still acknowledge received ones, as any
        process may.
        """
        segment = feed.place.segment
        life = self.layouts[topic_of(segment)].life
        deleting = self._host.topics.deletion
        if isinstance(error, NotFound | Closed) and await deleting.is_deleted(segment, life):
            raise TopicNotFound(feed.place.topic, deleted=True) from error
        if not isinstance(error, LeaseLost):
            raise error
        self._require_retakes(error)
        await self._lose(feed)
        self._hold_back(segment)
        # Messages of its descendants were delivered after messages that other consumers may get now.
        for one in [
            feed for name, feed in self.feeds.items() if not feed.finished and self._descends(name, (segment,))
        ]:
            await self._lose(one)

    def _require_retakes(self, error: LeaseLost) -> None:
        """Raise a lost lease to the user, unless the consumer takes leases again."""
        if not self._options.retakes:
            advice = "open the consumer again, or leave stand_by=False out: it then takes the lease again by itself"
            raise LeaseLost(error.name, advice) from error

    async def _lose(self, feed: Feed) -> None:
        feed.lose()
        await self._detach(feed)
        feed.lost, feed.error = True, None

    def _hold_back(self, segment: str) -> None:
        """Delay the next request for a lease that is lost repeatedly, to protect a store that cannot keep it."""
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
        Return all segments of the targets, parents before children.

        Planned children are left out: they are empty and may have no ledgers before the layout change ends.
        """
        return [
            (str(layout.name_of(segment.id)), topic, segment)
            for topic, layout in self.layouts.items()
            for segment in self._wanted_of(layout)
        ]

    def _wanted_of(self, layout: Layout) -> tuple[Segment, ...]:
        """
        Return the segments of one topic to attach to.

        A named segment is followed to its descendants. For ordered types, a descendant comes after all of its parents.
        So segments that were merged with it are included too, together with their ancestors.
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
        """Return whether this consumer still holds the ancestors of a segment; their leases may have been lost."""
        return all(feed.holds for feed in self._feeds_before(topic, segment.id))

    async def _attach(self, segment: str, topic: TopicName, at: Segment) -> None:
        """Attach to a segment, given by its full name and its place in the topic's layout."""
        options = self._options
        # Once per segment: otherwise two live consumers of one name would replace each other without end.
        replaces = options.named and segment not in self._tried
        self._tried.add(segment)
        permits = self._host.config.client.receive_messages_max
        request = AttachRequest(
            options.name,
            permits,
            options.priority,
            options.named,
            replaces,
            options.counts_durably,
            options.shares,
        )
        lost = self.feeds.get(segment)
        feed = self._new_feed(segment, topic, at)
        self.feeds[segment] = feed
        try:
            await self._host.dispatches.attach(feed.place, request, feed.listener(), feed.attach_to)
        except BaseException:
            feed.withdraw()
            feed.attached = None  # if it was attached, the host detaches it
            if lost is None:
                del self.feeds[segment]
            else:
                self.feeds[segment] = lost
            raise
        finally:
            feed.tried.set()

    def _new_feed(self, segment: str, topic: TopicName, at: Segment) -> Feed:
        options = self._options
        life = self.layouts[topic].life
        place = SubscriptionRef(str(topic), options.subscription, segment, options.type.name, life)
        lost = self.feeds.get(segment)
        missed = LostLeaseMessages(self._host) if lost is None else lost.missed
        follows = partial(self._follows, topic, at) if self._in_order and at.parents else None
        return Feed(place, self._inbox, self._wake_consumer, self.poke, follows, missed, options.counts_durably)

    async def _detach(self, feed: Feed) -> None:
        attached, feed.attached = feed.attached, None
        if attached is not None:
            await self._host.dispatches.detach(attached, self._inbox.purge(feed))

    async def _until_free(self, segment: str) -> None:
        """Wait until the present lease on a segment has ended, then try to attach again."""
        key = paths.lease_key(dispatching_lease(segment, self._options.subscription))
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
