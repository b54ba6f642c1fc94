"""Attaching a consumer to one segment, waiting for its lease, and taking a lost lease again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from txnframework.broker import AttachRequest, Host, RetryingTasks, SubscriptionRef, dispatching_lease
from txnframework.client._subscription.feed import Feed
from txnframework.client._subscription.inbox import Inbox
from txnframework.client._subscription.lost_messages import LostLeaseMessages
from txnframework.client._subscription.options import ConsumerOptions
from txnframework.client._subscription.segments import FollowedSegments, TopicSegment
from txnframework.errors import Closed, LeaseLost, NotFound, TopicNotFound
from txnframework.model import paths
from txnframework.model.positions import Position
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.concurrency import for_each

TOGETHER_MAX = 64
"""The most segments that a consumer is attached to, or detached from, at the same time."""

RETAKE_DELAY_MS = 100
RETAKE_DELAY_MS_MAX = 5_000
"""The longest wait before a lease is requested again after it was lost twice, and after many losses in a row."""
KEPT_MS = 10_000
"""A lease that was held for this long does not count as lost in a row."""


class SegmentAttachments:
    """
    Attaches a consumer to single segments, and detaches it.

    ``changed`` is set when segments may have to be attached or detached. ``wake`` wakes the callers of ``receive``.
    """

    def __init__(
        self,
        host: Host,
        options: ConsumerOptions,
        segments: FollowedSegments,
        inbox: Inbox,
        tasks: RetryingTasks,
        changed: asyncio.Event,
        wake: Callable[[], None],
    ) -> None:
        self.moving: set[str] = set()
        """The segments whose cursors this consumer moves now."""
        self._host = host
        self._options = options
        self._segments = segments
        self._inbox = inbox
        self._tasks = tasks
        self._changed = changed
        self._wake = wake
        # The segments whose leases are waited for.
        self._elsewhere: set[str] = set()
        # The segments where replacing an earlier consumer of the same name was already tried.
        self._tried: set[str] = set()
        # For each segment: the time of the last lease loss, and the number of losses in a row.
        self._losses: dict[str, tuple[int, int]] = {}

    def is_needed(self, segment: str) -> bool:
        """Return whether a segment is to be attached: not attached, finished, waited for, or being moved."""
        if segment in self._elsewhere or segment in self.moving:
            return False
        feed = self._segments.feeds.get(segment)
        return feed is None or feed.lost

    async def attach(self, at: TopicSegment) -> None:
        """Attach to a segment; if it fails, nothing has changed."""
        options, feeds = self._options, self._segments.feeds
        # Once per segment: otherwise two live consumers of one name would replace each other without end.
        replaces = options.named and at.name not in self._tried
        self._tried.add(at.name)
        request = AttachRequest(
            options.name,
            self._host.config.client.receive_messages_max,
            options.priority,
            options.named,
            replaces,
            options.counts_durably,
            options.shares,
        )
        lost = feeds.get(at.name)
        feed = feeds[at.name] = self.new_feed(at)
        try:
            await self._host.dispatches.attach(feed.place, request, feed.listener(), feed.attach_to)
        except BaseException:
            feed.withdraw()
            feed.attached = None  # if it was attached, the host detaches it
            if lost is None:
                del feeds[at.name]
            else:
                feeds[at.name] = lost
            raise
        finally:
            feed.tried.set()
        self._wake()

    def new_feed(self, at: TopicSegment) -> Feed:
        """Return a feed that replaces the one of a lost lease, if there is one."""
        options = self._options
        life = self._segments.layouts[at.topic].life
        place = SubscriptionRef(str(at.topic), options.subscription, at.name, options.type.name, life)
        lost = self._segments.feeds.get(at.name)
        missed = LostLeaseMessages(self._host) if lost is None else lost.missed
        follows = partial(self._segments.follows, at) if options.follows_order and at.segment.parents else None
        return Feed(place, self._inbox, self._wake, self._poke, follows, missed, options.counts_durably)

    async def detach(self, feed: Feed, withdrawn: frozenset[Position] = frozenset()) -> None:
        """
        Detach from a segment; the messages that the user has not received go to other consumers.

        ``withdrawn``: those of them that were removed from the inbox before.
        """
        attached, feed.attached = feed.attached, None
        self._wake()
        if attached is not None:
            await self._host.dispatches.detach(attached, withdrawn | self._inbox.purge(feed))

    async def detach_all(self, generations: Iterable[Sequence[Feed]]) -> None:
        """
        Detach from all segments, the last generation first, even if some detachments fail.

        The segments of one generation do not descend from each other.
        """
        withdrawn = self._inbox.purge_all()

        async def detach(feed: Feed) -> None:
            await self.detach(feed, withdrawn.get(feed, frozenset()))

        async with AsyncExitStack() as last_first:
            for feeds in generations:
                last_first.push_async_callback(for_each, feeds, detach, TOGETHER_MAX, despite_errors=True)

    async def lose(self, feed: Feed) -> None:
        """
        Detach from a segment whose lease was lost or is given up.

        The user may still handle what it received, so no delivery counts.
        """
        feed.lose()
        await self.detach(feed, frozenset() if feed.attached is None else feed.attached.delivered())
        feed.lost, feed.error = True, None

    async def step_back(self, feed: Feed, error: Exception) -> None:
        """
        Handle the end of a dispatch; after a lost lease, take the lease again unless ``retakes`` is False.

        Messages delivered under that lease are redelivered. The user can still acknowledge received ones, as any
        process may.
        """
        segment = feed.place.segment
        life = self._segments.layout_of(segment).life
        deleting = self._host.topics.deletion
        if isinstance(error, NotFound | Closed) and await deleting.is_deleted(segment, life):
            raise TopicNotFound(feed.place.topic, deleted=True) from error
        if not isinstance(error, LeaseLost):
            raise error
        self._require_retakes(error)
        await self.lose(feed)
        self._hold_back(segment)
        # Messages of its descendants were delivered after messages that other consumers may get now.
        for one in [feed for feed in self._segments.feeds_after(segment) if not feed.finished]:
            await self.lose(one)

    def take_again(self, segment: str, error: LeaseLost) -> None:
        """Handle the loss of a lease before a consumer was attached: the segment is still to be attached."""
        self._require_retakes(error)
        self._hold_back(segment)

    def wait_for(self, segment: str) -> None:
        """Wait until the present lease on a segment has ended, then let it be attached."""
        self._elsewhere.add(segment)
        self._tasks.start(partial(self._until_free, segment))

    async def _until_free(self, segment: str) -> None:
        key = paths.lease_key(dispatching_lease(segment, self._options.subscription))
        watch = await self._host.metadata.watch(key)
        try:
            while await self._host.metadata.get(key) is not None:
                await watch.changed()
        finally:
            await watch.close()
        self._elsewhere.discard(segment)
        self._changed.set()

    def _require_retakes(self, error: LeaseLost) -> None:
        """Raise a lost lease to the user, unless the consumer takes leases again."""
        if not self._options.retakes:
            advice = "open the consumer again, or leave stand_by=False out: it then takes the lease again by itself"
            raise LeaseLost(error.name, advice) from error

    def _hold_back(self, segment: str) -> None:
        """Delay the next request for a lease that is lost repeatedly, to protect a store that cannot keep it."""
        lost_ms, losses = self._losses.get(segment, (0, 0))
        now_ms = self._host.environment.now_ms()
        losses = losses + 1 if now_ms - lost_ms < KEPT_MS else 1
        self._losses[segment] = now_ms, losses
        if losses > 1:
            self._elsewhere.add(segment)
            self._tasks.start(partial(self._ask_later, segment, losses - 1))

    async def _ask_later(self, segment: str, failures: int) -> None:
        await Backoff(self._host.environment, RETAKE_DELAY_MS, RETAKE_DELAY_MS_MAX).pause(failures)
        self._elsewhere.discard(segment)
        self._changed.set()

    def _poke(self) -> None:
        """Let segments be attached or detached soon."""
        self._changed.set()
        self._wake()
