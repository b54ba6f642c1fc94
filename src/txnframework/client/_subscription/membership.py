"""The segments that a consumer is attached to: all segments of its topics, including later children."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from txnframework.broker import Host, RetryingTasks
from txnframework.client._subscription.attachments import TOGETHER_MAX, SegmentAttachments
from txnframework.client._subscription.division import Division
from txnframework.client._subscription.inbox import Inbox
from txnframework.client._subscription.moves import CursorMoves
from txnframework.client._subscription.options import ConsumerOptions
from txnframework.client._subscription.segments import FollowedSegments, Targets, TopicSegment
from txnframework.errors import (
    Closed,
    ConsumerBusy,
    LeaseLost,
    LedgerNotFound,
    NotFound,
    SubscriptionOwnedElsewhere,
    TopicNotFound,
    Unavailable,
)
from txnframework.interfaces import IWatch
from txnframework.model.names import SegmentName, TopicName
from txnframework.runtime.concurrency import for_each


class Membership:
    """
    Attaches a consumer to segments as they appear, and detaches it from finished ones.

    For ordered types, a child is attached when its parents' messages have all been delivered and no other consumer has
    any of them. For unordered types, all segments are attached at once. A segment that another process dispatches is
    then taken over when that lease ends. If processes share the subscription, a consumer attaches only to the segments
    that its process is to dispatch (``Division``).

    A consumer that stands by always waits for the lease. A consumer that lost a lease takes it again, or waits until it
    can. The lease alone decides which process dispatches. Taking it again acknowledges none of the messages delivered
    under a lost lease.

    ``wake`` wakes the callers of ``receive``.
    """

    def __init__(
        self, host: Host, targets: Targets, options: ConsumerOptions, inbox: Inbox, wake: Callable[[], None]
    ) -> None:
        self.error: Exception | None = None
        """The error for which the consumer cannot continue."""
        self.segments = FollowedSegments(targets, options.follows_order)
        self._host = host
        self._options = options
        self._wake_consumer = wake
        self._changed = changed = asyncio.Event()
        self._watches: list[IWatch] = []
        # The topics that have migrated, and what they have become, until they are followed.
        self._moved: dict[TopicName, TopicName] = {}
        # The topics whose layouts have changed since they were read.
        self._unread: set[TopicName] = set()
        # A pass over all segments decides by the feeds, which another pass or a seek changes.
        self._passing = asyncio.Lock()
        self._tasks = tasks = RetryingTasks(host.environment, self._failed)
        self._attachments = attachments = SegmentAttachments(host, options, self.segments, inbox, tasks, changed, wake)
        self._division = Division(host, options, self.segments, attachments, tasks, changed) if options.shares else None
        self.moves = CursorMoves(host, self.segments, attachments, changed, self._passing, self._attach_all)

    async def join(self) -> None:
        """
        Attach to the existing segments, and follow layout changes.

        :raises SubscriptionOwnedElsewhere: another process dispatches a segment or, for an unordered type, all of them.
            Not raised for a consumer that stands by.
        :raises ConsumerBusy: the type allows one consumer only, and the subscription has one. Not raised for a consumer
            that stands by.
        :raises Conflict: other consumers use the subscription with another type.
        """
        try:
            for topic in self.segments.topics:
                watch = await self._host.topics.watch(topic)
                self._watches.append(watch)
                self._tasks.start(partial(self._at_layout_changes, topic, watch))
            if self._division is not None:
                await self._division.join()
            else:
                await self._require_one_type()
            await self._load_layouts()
            if self._division is not None:
                await self._division.divide()
            await self._attach_all(first=True)
        except BaseException:
            await self.leave()
            raise
        self._tasks.start(self._keep_up)

    async def _require_one_type(self) -> None:
        options = self._options
        name = options.name if options.named else None
        for topic in self.segments.topics:
            await self._host.shares.require_one_type(topic, options.subscription, name, options.type.name)

    async def leave(self) -> None:
        """
        Detach from all segments, even if some detachments fail. A second call is allowed.

        Unacknowledged messages go to other consumers.
        """
        await self._tasks.stop()
        feeds = tuple(self.segments.feeds.values())
        async with AsyncExitStack() as last_first:
            # The host completes attachments and detachments during which the tasks were stopped.
            keys = [feed.place.key for feed in feeds]
            keys += [(segment, self._options.subscription) for segment in self.segments.names()]
            last_first.push_async_callback(self._host.steps.abandoned_ended, keys)
            for watch in self._watches:
                last_first.push_async_callback(watch.close)
            last_first.push_async_callback(self._attachments.detach_all, self.segments.generations())
            if self._division is not None:
                # First of all, so that the others expect nothing more of this process.
                last_first.push_async_callback(self._division.leave)

    async def _load_layouts(self) -> None:
        layouts = self.segments.layouts
        for target in self.segments.targets:
            topic = target.topic
            layout = await self._host.topics.finish_changes(topic)
            if layout.topic != topic:
                # It migrated after the caller's name was resolved, and the watch on it is armed.
                raise Unavailable(f"{topic} has just become {layout.topic}")
            layouts[topic] = layout
            if isinstance(target, SegmentName):
                layout.segment_of(target)

    async def _at_layout_changes(self, topic: TopicName, watch: IWatch) -> None:
        while True:
            if topic not in self._unread:
                await watch.changed()
                self._unread.add(topic)  # a failed reading is repeated without another change
            layout = await self._host.topics.layout(topic)
            self._unread.discard(topic)
            before = self.segments.layouts.get(topic)
            if before is not None and not layout.continues(before):
                raise TopicNotFound(str(topic), deleted=True)
            if layout.topic != topic:
                self._moved[topic] = layout.topic
                self._changed.set()
                return
            self.segments.layouts[topic] = layout
            self._changed.set()

    async def _follow_moves(self) -> None:
        """
        Follow topics that have migrated: lose what is attached of them, as a lease is lost, and attach again.

        The messages that the user has received and not acknowledged are delivered again. Until a topic is followed
        completely, it is tried again.
        """
        for topic, to in tuple(self._moved.items()):
            watch = await self._host.topics.watch(to)
            try:
                layout = await self._host.topics.layout(to)
                if self._division is not None:
                    await self._division.move(topic, to)
                for feed in tuple(self.segments.feeds.values()):
                    if feed.place.topic == str(topic):
                        await self._attachments.lose(feed)
            except BaseException:
                await watch.close()
                raise
            self.segments.move(topic, layout)
            self._watches.append(watch)
            del self._moved[topic]
            self._tasks.start(partial(self._at_layout_changes, to, watch))

    async def _note_moves(self) -> bool:
        """Return whether a followed topic has migrated, which its watch may not have shown yet."""
        for topic, before in tuple(self.segments.layouts.items()):
            layout = await self._host.topics.layout(topic)
            if layout.topic != topic and layout.continues(before):
                self._moved[topic] = layout.topic
        return bool(self._moved)

    async def _keep_up(self) -> None:
        while True:
            self._changed.clear()
            async with self._passing:
                await self._pass()
            await self._changed.wait()

    async def _pass(self) -> None:
        """Do what has become necessary: detach from segments, and attach to others."""
        await self._follow_moves()
        for feed in tuple(self.segments.feeds.values()):
            if feed.error is not None and feed.attached is not None:
                if isinstance(feed.error, NotFound | Closed) and await self._note_moves():
                    await self._follow_moves()
                    continue
                await self._attachments.step_back(feed, feed.error)
            if feed.done and not feed.finished:
                await feed.finish()
                await self._attachments.detach(feed)
        for segment, feed in tuple(self.segments.feeds.items()):
            if feed.sought:
                await self.moves.go_back_before(segment, feed)
        if self._division is not None:
            await self._division.divide()
            await self._division.give_up()
        await self._attach_all()

    async def _attach_all(self, *, first: bool = False) -> None:
        """
        Attach to the segments that are needed, parents before children; ``first``: for the caller of ``join``.

        Many are attached at the same time. A consumer that may be refused begins with one of them. So of two processes
        that open a consumer at the same time, one gets all segments, and the other one none.
        """
        begun: set[str] = set()
        refused: list[SubscriptionOwnedElsewhere] = []
        alone = first and not self._options.stand_by
        while due := [at for at in self.segments.all() if at.name not in begun and self._is_due(at)]:
            together = due[:1] if alone else due
            alone = False
            begun.update(at.name for at in together)
            await for_each(together, partial(self._attach, first, refused), TOGETHER_MAX)
            if self._moved and not first:
                self._changed.set()
                return
        if first and refused and not self.segments.feeds and not self._options.stand_by:
            raise refused[-1]

    def _is_due(self, at: TopicSegment) -> bool:
        """Return whether a segment is to be attached now."""
        if not self._attachments.is_needed(at.name) or not self.segments.may_follow(at):
            return False
        return self._division is None or self._division.takes(at.topic, at.name)

    async def _attach(self, first: bool, refused: list[SubscriptionOwnedElsewhere], at: TopicSegment) -> None:
        """Attach to a segment if that is still due; if another process dispatches it, wait until it is free."""
        if (self._moved and not first) or not self._is_due(at):
            return
        attachments = self._attachments
        # A segment that this consumer reached by following may already have another consumer, as after a merge.
        refuses = first and not self._options.stand_by and self.segments.is_asked_for(at.name)
        try:
            await attachments.attach(at)
        except SubscriptionOwnedElsewhere as error:
            if self._division is not None:
                # Another process was faster. The change of its lease leads to the next attempt, except on the segment
                # of a topic that has migrated: its lease has the old name.
                if self.segments.layouts[at.topic].is_adopted(at.segment.id):
                    attachments.wait_for(at.name)
                return
            if refuses and self.segments.in_order:
                raise
            refused.append(error)
            attachments.wait_for(at.name)
        except ConsumerBusy:
            if refuses:
                raise
            attachments.wait_for(at.name)
        except LeaseLost as error:
            attachments.take_again(at.name, error)
            self._changed.set()
        except LedgerNotFound:
            # The segment that was opened belongs to the topic that this one has become.
            if first or not await self._note_moves():
                raise

    def _failed(self, error: Exception) -> None:
        self.error = self.error or error
        if self._host.closing:
            self._tasks.cancel()  # a program need not close its consumers before the client
        self._wake_consumer()
