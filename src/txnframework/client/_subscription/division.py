"""The segments of a consumer's topics that its process dispatches, where several processes share a subscription."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from logging import INFO

from txnframework.broker import Event, Host, RetryingTasks, SubscriptionShare, finished_at, log_event
from txnframework.client._subscription.attachments import SegmentAttachments
from txnframework.client._subscription.feed import Feed
from txnframework.client._subscription.options import ConsumerOptions
from txnframework.client._subscription.segments import FollowedSegments, TopicSegment
from txnframework.errors import NotFound
from txnframework.model.layout import SegmentState
from txnframework.model.names import TopicName


class Division:
    """
    Decides which segments a consumer takes and gives up, by the leases of all processes that share the subscription.

    Every process decides alike: see ``SharingView.divided``. ``changed`` is set whenever the leases have changed. Until
    this process knows the leases, and while it is not registered, nothing is taken and nothing is given up.

    A segment is given up in steps: the consumer hands out nothing more of it, waits a bounded time until the messages
    that it handed out are acknowledged, and detaches as after a lost lease. So every rule for lost leases holds.
    """

    def __init__(
        self,
        host: Host,
        options: ConsumerOptions,
        segments: FollowedSegments,
        attachments: SegmentAttachments,
        tasks: RetryingTasks,
        changed: asyncio.Event,
    ) -> None:
        self._host = host
        self._options = options
        self._segments = segments
        self._attachments = attachments
        self._tasks = tasks
        self._changed = changed
        self._shares: dict[TopicName, SubscriptionShare] = {}
        # The topics for which this process is registered, or may be after a call that failed or was cancelled.
        self._registered: dict[TopicName, None] = {}
        self._divided: dict[TopicName, dict[str, str]] = {}

    async def join(self) -> None:
        """Register this process for each topic; if it fails, call ``leave``."""
        for topic in self._segments.topics:
            await self._register(topic)

    async def move(self, topic: TopicName, to: TopicName) -> None:
        """Register this process for the topic that another one has become."""
        await self._register(to)
        if self._shares.pop(topic, None) is not None:
            self._divided.pop(topic, None)
            await self._host.shares.leave(topic, self._options.subscription, self._changed.set)
            self._registered.pop(topic, None)

    async def leave(self) -> None:
        """Leave all topics, also those that are being followed; a second call is allowed."""
        self._shares.clear()
        async with AsyncExitStack() as last_first:
            for topic in self._registered:
                last_first.push_async_callback(
                    self._host.shares.leave, topic, self._options.subscription, self._changed.set
                )

    async def _register(self, topic: TopicName) -> None:
        self._registered[topic] = None
        name = self._options.name if self._options.named else None
        kind = self._options.type.name
        share = await self._host.shares.join(topic, self._options.subscription, name, kind, self._changed.set)
        self._shares[topic] = share

    async def divide(self) -> None:
        """Divide the segments that are not finished; for ordered types, only those whose parents are finished."""
        for layout in self._segments.layouts.values():
            for at in self._segments.of(layout):
                if at.segment.state is SegmentState.REPLACED and not self._segments.is_finished(at.name):
                    await self._look_whether_finished(at)
        # Nothing is awaited from here on, so that all decisions are about one state.
        for topic, layout in self._segments.layouts.items():
            share = self._shares.get(topic)
            if share is not None and share.view is not None:
                own = self._host.dispatches.segments_of(self._options.subscription)
                self._divided[topic] = share.view.divided(self._segments.ready(layout), own)
            else:
                self._divided.pop(topic, None)

    def takes(self, topic: TopicName, segment: str) -> bool:
        """Return whether this process is to dispatch a segment, and may, because no other process does."""
        share = self._shares.get(topic)
        if share is None or share.view is None or topic not in self._divided:
            return False
        view = share.view
        return self._divided[topic].get(segment, view.session) == view.session and view.is_free(segment)

    async def give_up(self) -> None:
        """
        Give up the segments that other processes are to dispatch, each together with its descendants here.

        What is handed out of a descendant follows the messages of the segment, which are redelivered elsewhere.
        """
        feeds, descends = self._segments.feeds, self._segments.descends
        now_ms = self._host.environment.monotonic_ms()
        leaving = {name for name, feed in feeds.items() if self._is_given_up(name, feed)}
        if leaving:
            leaving |= {name for name, feed in feeds.items() if feed.is_running and descends(name, leaving)}
        for name, feed in tuple(feeds.items()):
            if name in leaving and feed.given_up_ms is None:
                self._log_giving_up(name)
                wait_ms = self._host.config.subscriptions.handover_timeout_ms
                feed.retire(now_ms + wait_ms)
                self._tasks.start(partial(self._look_again_after, wait_ms))
            elif name not in leaving and feed.given_up_ms is not None:
                if feed.attached is not None and feed.is_running:
                    await feed.attached.dispatch.keep()
                feed.given_up_ms = None
        for name in [one for one in reversed(self._segments.names()) if one in leaving]:  # descendants first
            followed = any(feed.is_running for feed in self._segments.feeds_after(name))
            if not followed and feeds[name].is_quiet(now_ms):
                await self._attachments.lose(feeds[name])

    def _log_giving_up(self, segment: str) -> None:
        topic = self._segments.layout_of(segment).topic
        share = self._shares.get(topic)
        view = None if share is None else share.view
        if view is None:
            return
        heir = self._divided.get(topic, {}).get(segment, view.session)
        if heir != view.session:
            name = self._options.subscription
            process, to = (view.processes.get(one, one) for one in (view.session, heir))
            sentence = f"{process} gives {segment} of {name} up to {to}"
            log_event(
                INFO, Event.SEGMENT_GIVEN_UP, sentence, segment=segment, subscription=name, process=process, to=to
            )

    def _is_given_up(self, segment: str, feed: Feed) -> bool:
        """Return whether another process is to dispatch a segment that this process dispatches."""
        if feed.attached is None or not feed.is_running or not feed.attached.dispatch.may_be_given_up:
            return False
        topic = self._segments.layout_of(segment).topic
        share = self._shares.get(topic)
        if share is None or share.view is None or topic not in self._divided:
            return False
        return self._divided[topic].get(segment, share.view.session) != share.view.session

    async def _look_again_after(self, wait_ms: int) -> None:
        await self._host.environment.sleep(wait_ms)
        self._changed.set()

    # -- segments that others finished ----------------------------------------------------------------

    async def _look_whether_finished(self, at: TopicSegment) -> None:
        """
        Mark a sealed segment as finished if other processes have finished it and left.

        One that nothing was sent to is not finished before its parents: its children are received after all of these.
        """
        if not self._segments.may_follow(at):
            return
        feeds, moving = self._segments.feeds, self._attachments.moving
        feed = feeds.get(at.name)
        if at.name in moving or self._is_dispatched(at) or (feed is not None and not feed.lost):
            return
        incarnation = await self._finished_at(at)
        if incarnation is not None and feeds.get(at.name) is feed and at.name not in moving:
            found = self._attachments.new_feed(at)
            found.finish_unseen(incarnation)
            feeds[at.name] = found

    def _is_dispatched(self, at: TopicSegment) -> bool:
        """Return whether any process is known to dispatch a segment."""
        share = self._shares.get(at.topic)
        return share is not None and share.view is not None and at.name in share.view.holders

    async def _finished_at(self, at: TopicSegment) -> int | None:
        """Return the incarnation of the cursor under which a segment is finished; None: it is not finished."""
        try:
            opened = await self._host.segment(at.name)
            subscribed = await self._host.subscription(str(at.topic), self._options.subscription, at.name)
            return await finished_at(opened, subscribed)
        except NotFound:
            return None  # deleted, which an attachment will show
