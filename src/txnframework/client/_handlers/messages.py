"""The messages that a handler loop has: whether its consumer still holds them, and their way back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from txnframework.broker import SegmentDispatch
from txnframework.client._handlers.plan import order_key
from txnframework.client._messages import Message, by_segment
from txnframework.client._subscription.inbox import Inbox, OrderKey, Source
from txnframework.client._subscription.segments import FollowedSegments
from txnframework.model.dispatch import Ordering


class HandledMessages:
    """
    Messages that a consumer's loop received and has not finished.

    Every method is a plain function except ``refresh``. So no message is lost if the loop is cancelled.
    """

    def __init__(self, segments: FollowedSegments, inbox: Inbox, ordering: Ordering, wake: Callable[[], None]) -> None:
        self._ordering = ordering
        self._segments = segments
        self._inbox = inbox
        self._wake = wake

    def follow_keys(self) -> None:
        """Let the inbox keep messages whose key is held, until ``forget_keys``."""
        self._inbox.ready = self._may_be_handled
        self._inbox.order_key = None if self._ordering is Ordering.NONE else self.key

    def forget_keys(self) -> None:
        """Let the inbox return all messages in their order."""
        self._inbox.ready = None
        self._inbox.forget_keys()

    def key(self, message: Message[Any]) -> OrderKey | None:
        """Return the key of a message; None: it may overtake any message."""
        return order_key(self._ordering, message)

    def hold(self, keys: Iterable[OrderKey]) -> None:
        """Let no further message of these keys be received."""
        self._inbox.hold(keys)

    def free(self, keys: Iterable[OrderKey]) -> None:
        """Let messages of these keys be received again."""
        self._inbox.free(keys)
        self._wake()

    def has(self, message: Message[Any]) -> bool:
        """Return whether the consumer has this delivery: not acknowledged, not given back, under the same lease."""
        dispatch = self._dispatch(message)
        feed = self._segments.feeds.get(message.id.segment)
        if dispatch is None or feed is None or feed.attached is None:
            return False
        return feed.attached.has(message.id.position)

    def is_held(self, message: Message[Any]) -> bool:
        """Return whether a transaction holds the message, as far as it is known since ``refresh``."""
        dispatch = self._dispatch(message)
        return dispatch is not None and dispatch.is_held(message.id.position)

    def has_suspects(self) -> bool:
        """Return whether there are messages that may have ended an earlier process, and must be handled alone."""
        return any(one.counting is not None and one.counting.suspects for one in self._segments.feeds.values())

    async def refresh(self, messages: Iterable[Message[Any]]) -> None:
        """
        Load the state of the messages' acknowledgments.

        :raises Unavailable: the store cannot be asked now.
        """
        for some in by_segment(messages).values():
            dispatch = self._dispatch(some[0])
            if dispatch is not None:
                await dispatch.refresh()

    def give_back(
        self, key: OrderKey | None, messages: Iterable[Message[Any]], failed: Iterable[Message[Any]] = ()
    ) -> None:
        """
        Let messages of a key be delivered again, before all later ones; only the delivery of ``failed`` ones counts.

        Messages of the key that the loop has not received yet are withdrawn: they would overtake these. With None, the
        messages have no key.
        """
        counted = {one.id for one in failed}
        given_back = by_segment(messages)
        for segment in given_back if key is None else (key.segment,):
            feed = self._segments.feeds.get(segment)
            if feed is None or feed.attached is None:
                continue
            unseen = frozenset() if key is None else feed.withdraw(key)
            had = [one for one in given_back.get(segment, ()) if self.has(one)]
            failing = {one.id.position for one in had if one.id in counted}
            feed.attached.give_back(failing, {one.id.position for one in had} - failing | unseen)

    def give_back_later(self, message: Message[Any], delay_ms: int) -> None:
        """Let a message be delivered again after a delay; its delivery counts."""
        feed = self._segments.feeds.get(message.id.segment)
        if feed is not None and feed.attached is not None and self.has(message):
            feed.attached.return_later((message.id.position,), delay_ms, feed.unseen)

    def _may_be_handled(self, feed: Source) -> bool:
        """
        Return whether the messages of a segment may be handled now.

        With an order, this is after everything in its ancestors is acknowledged. A message of an ancestor that fails is
        then not overtaken.
        """
        if self._ordering is Ordering.NONE:
            return True
        return all(one.done for one in self._segments.ancestors(feed.place.segment))

    def _dispatch(self, message: Message[Any]) -> SegmentDispatch | None:
        """Return the dispatch that delivered a message, while its lease is held and the subscription is not moved."""
        feed = self._segments.feeds.get(message.id.segment)
        if feed is None or feed.attached is None:
            return None
        dispatch = feed.attached.dispatch
        is_same = message.tenure is dispatch.tenure and message.incarnation == dispatch.incarnation
        return dispatch if is_same and dispatch.ended is None else None
