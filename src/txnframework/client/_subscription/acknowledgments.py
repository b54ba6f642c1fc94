"""Acknowledgments of a consumer: on the segments that it is attached to, and on those that it has left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from txnframework.broker import FINISHED_ELSEWHERE, NOT_UNDER_LEASE, Attachment, Host, acks_of, cumulative_ack
from txnframework.client._base import raise_if_deleted, require_topics
from txnframework.client._messages import Message, MessageID, by_segment, check_message_id
from txnframework.client._seek_positions import LATE_IDS, entry_before
from txnframework.client._subscription.feed import Feed
from txnframework.client._subscription.segments import FollowedSegments
from txnframework.errors import (
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    TransactionConflict,
    TransactionDomainMismatch,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.model.acks import Ack, AckRequest
from txnframework.model.entries import EntryView
from txnframework.model.ids import Branch
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import Isolation, ReadRequest

Acked = Message[Any] | MessageID
"""A message, or its id."""


def check_acked(given: Iterable[object], subscription: str) -> None:
    """Raise InvalidInput unless all values are ids, or messages that another subscription did not receive."""
    for one in given:
        if not isinstance(one, Message | MessageID):
            hint = "; several are given one by one, as in ack(*messages)" if isinstance(one, list | tuple) else ""
            raise InvalidInput(f"a message, or its id, can be acknowledged, not a {type(one).__name__}{hint}")
        if isinstance(one, MessageID):
            check_message_id(one)
        elif one.subscription not in ("", subscription):
            raise InvalidInput(
                f"{one.id} was received by a consumer of subscription {one.subscription}, and this consumer is of "
                f"{subscription}; acknowledge it with the consumer that received it"
            )


class ConsumerAcks:
    """
    Acknowledges messages of a consumer.

    ``require_open`` raises Closed if the consumer or the client was closed.
    """

    def __init__(
        self, host: Host, subscription: str, segments: FollowedSegments, require_open: Callable[[], None]
    ) -> None:
        self._host = host
        self.subscription = subscription
        self._segments = segments
        self.require_open = require_open

    def topic_of(self, segment: str) -> str:
        """
        Return the topic to which a segment belongs, whose family serves its acknowledgments.

        The name of a segment does not tell: it stays when the topic migrates. A segment that this consumer does not
        follow is returned itself.
        """
        layout = self._segments.find_layout(segment)
        return segment if layout is None else str(layout.topic)

    async def single(self, messages: Iterable[Acked], holder: Branch | None, principal: str = "") -> None:
        """Acknowledge messages individually, in ``holder`` or (None) outside transactions; see ``Consumer.ack``."""
        self.require_open()
        for segment, some in by_segment(await self.resolved(messages)).items():
            for incarnation in sorted({one.incarnation for one in some}):
                sized = tuple((one.id.position, one.batch_size) for one in some if one.incarnation == incarnation)
                attached = self.feed(segment).present
                try:
                    if attached is not None:
                        await attached.ack(sized, incarnation, holder, principal)
                    else:
                        await self._ack_detached(segment, acks_of(sized), incarnation, holder, principal)
                except TransactionDomainMismatch as error:
                    await self._raise_if_moved(error, segment, some)
                    raise
                await self.acknowledged(segment, attached, [position for position, _ in sized], holder)

    async def acknowledged(
        self, segment: str, asked: Attachment | None, positions: Iterable[Position], holder: Branch | None
    ) -> None:
        """Note that messages of a segment were acknowledged individually, by ``asked`` or (None) past a dispatch."""
        await self._let_successor_look(segment, asked)
        self.feed(segment).missed.acknowledged(positions, holder)

    async def cumulative(self, message: Acked, holder: Branch | None, principal: str = "") -> None:
        """Acknowledge a message and all messages before it; see ``Consumer.ack_cumulative``."""
        self.require_open()
        (one,) = await self.resolved((message,))
        segment, sized = one.id.segment, (one.id.position, one.batch_size)
        for feed in self._segments.ancestors(segment):
            await self._finish_ancestor(feed, holder, principal)
        if holder is not None:
            await self.feed(segment).missed.resolve()
            # This follows the last wait: the lease may have been lost in the meantime.
            self._require_current(one, holder)
        attached = self.feed(segment).present
        try:
            if attached is not None:
                await attached.ack_cumulative(sized, one.incarnation, holder, principal)
            else:
                await self._ack_detached(segment, (cumulative_ack(*sized),), one.incarnation, holder, principal)
        except TransactionDomainMismatch as error:
            await self._raise_if_moved(error, segment, (one,))
            raise
        await self._let_successor_look(segment, attached)
        if holder is None:
            self.feed(segment).missed.acknowledged_upto(one.id.position)

    async def return_later(self, messages: Iterable[Acked], delay_ms: int) -> None:
        """Let messages be redelivered after a delay; see ``Consumer.nack``."""
        for segment, some in by_segment(await self.resolved(messages)).items():
            feed = self.feed(segment)
            if feed.attached is not None and feed.attached.dispatch.ended is None:
                feed.attached.return_later(tuple(one.id.position for one in some), delay_ms, feed.unseen)
            else:
                await require_topics(self._host, (self._segments.layout_of(segment),))

    async def raise_if_deleted(self, messages: Iterable[Acked], error: TxnFrameworkError) -> None:
        """Raise TopicNotFound if the deletion of the topic of one of these messages caused one of DELETION_ERRORS."""
        ids = [one.id if isinstance(one, Message) else one for one in messages]
        segments = {one.segment for one in ids if isinstance(one, MessageID)}
        await raise_if_deleted(self._host, self._segments.layouts_of(segments), error)

    async def resolved(self, messages: Iterable[Acked]) -> list[Message]:
        """Return messages, loading for ids, and for messages of readers, what an acknowledgment needs."""
        given = tuple(messages)
        check_acked(given, self.subscription)
        found = []
        for one in given:
            if isinstance(one, MessageID):
                found.append(await self._message(one))
            else:
                found.append(one if one.subscription else await self._message(one.id))
        return found

    def feed(self, segment: str) -> Feed:
        """Return the feed of a segment; raise InvalidInput if this consumer does not follow the segment."""
        feed = self._segments.feeds.get(segment)
        if feed is None:
            raise InvalidInput(f"this consumer of subscription {self.subscription} receives nothing from {segment}")
        return feed

    async def _let_successor_look(self, segment: str, asked: Attachment | None) -> None:
        """
        Refresh the present dispatch of a segment if it did not carry out the acknowledgment itself.

        A lease can be lost during an acknowledgment. The next dispatch may have read the cursor before the
        acknowledgment was stored. Without a refresh, it would deliver the message again after it was acknowledged.
        """
        await self.feed(segment).tried.wait()
        attached = self.feed(segment).present
        if attached is not None and (asked is None or attached.dispatch is not asked.dispatch):
            try:
                await attached.dispatch.refresh()
            except Unavailable as error:
                raise OutcomeUnknown(f"it was acknowledged, and may be delivered again: {error}") from error

    async def _finish_ancestor(self, feed: Feed, holder: Branch | None, principal: str) -> None:
        """Acknowledge the received messages of an ancestor segment, which has its own cursor."""
        if holder is None:
            feed.missed.clear()
        else:
            await feed.missed.resolve()
            self._require_nothing_missed(feed, holder)
        if feed.last_seen is None:
            return
        attached = feed.present
        if attached is not None:
            await attached.ack_given(feed.last_seen, holder, principal)
        elif holder is not None and not feed.finished:
            raise TransactionConflict(holder.txn_id, NOT_UNDER_LEASE)
        elif holder is not None and feed.first_lost is not None:
            raise TransactionConflict(holder.txn_id, f"{feed.first_lost} {FINISHED_ELSEWHERE}")

    def _require_nothing_missed(self, feed: Feed, holder: Branch, upto: Position | None = None) -> None:
        """Require that messages received under a lost lease were redelivered or acknowledged by this consumer."""
        first = feed.missed.first(upto)
        if first is not None:
            raise TransactionConflict(holder.txn_id, f"{first} {FINISHED_ELSEWHERE}")

    def _require_current(self, message: Message, holder: Branch) -> None:
        """
        Require that a message was received under this consumer's present lease.

        After a lease is lost, the messages delivered under it go to other consumers. This process no longer knows which
        messages these were.
        """
        feed = self.feed(message.id.segment)
        self._require_nothing_missed(feed, holder, message.id.position)
        if feed.finished:
            return  # everything is acknowledged; the store detects the conflict
        attached = feed.present
        if attached is None:
            current = False
        elif attached.dispatch.incarnation != message.incarnation:
            return  # the subscription was moved; the store detects the conflict
        elif message.tenure is None:
            # Only the id is known: it may refer to an earlier delivery, unless the message was delivered again.
            current = attached.was_given(message.id.position)
        else:
            renounced = attached.was_taken_back(message.id.position)
            current = message.tenure is attached.dispatch.tenure and not renounced
        if not current:
            raise TransactionConflict(holder.txn_id, NOT_UNDER_LEASE)

    async def _raise_if_moved(
        self, error: TransactionDomainMismatch, segment: str, messages: Iterable[Message]
    ) -> None:
        """
        Raise TransactionConflict if the transaction has the wrong family only because the topic has just migrated.

        Then this consumer has not followed yet, or it received the messages before. They are delivered again.
        """
        layout, attached = self._segments.layout_of(segment), self.feed(segment).present
        present = None if attached is None else attached.dispatch.tenure
        is_earlier = any(one.tenure not in (None, present) for one in messages)
        is_moving = await self._host.topics.current_name(layout.topic) != layout.topic
        if is_moving or (layout.origin is not None and is_earlier):
            reason = f"{layout.topic} has migrated to another family, and delivers its messages again"
            raise TransactionConflict(error.txn_id, reason) from error

    async def _ack_detached(
        self, segment: str, acks: tuple[Ack, ...], incarnation: int, holder: Branch | None, principal: str
    ) -> None:
        """Acknowledge on a segment that this consumer has left, because it was finished or its lease was lost."""
        topic = str(self._segments.layout_of(segment).topic)
        subscribed = await self._host.subscription(topic, self.subscription, segment)
        if holder is None:
            if not await subscribed.cursor.apply(incarnation, acks, None):
                await subscribed.cursor.load()  # raises if the cursor was deleted; after a seek, they have no effect
        else:
            await subscribed.pending_acks.add(AckRequest(holder, acks, incarnation, principal=principal))

    async def _message(self, message_id: MessageID) -> Message:
        feed = self.feed(message_id.segment)
        size: int | None = None
        if feed.attached is not None:
            incarnation = feed.attached.dispatch.incarnation
            size = feed.attached.dispatch.batch_size(message_id.position)
        else:
            place = feed.place
            subscribed = await self._host.subscription(place.topic, place.subscription, place.segment)
            incarnation = (await subscribed.cursor.load()).incarnation
        if size is None:
            size = await self._stored_batch_size(message_id)
        return Message(
            feed.place.topic, message_id, None, b"", {}, 0, "", 0, _batch_size=size, _incarnation=incarnation
        )

    async def _stored_batch_size(self, message_id: MessageID) -> int:
        opened = await self._host.segment(message_id.segment)
        at = message_id.position.entry
        page = await opened.buffer.read(ReadRequest(entry_before(at), Limit(1), Isolation.READ_UNCOMMITTED))
        if not page.entries or page.entries[0].position != at:
            raise NotFound(f"there is no message at {message_id}; {LATE_IDS}")
        return EntryView(page.entries[0].data, at, message_id.segment).count
