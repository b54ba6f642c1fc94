"""Consumers: receiving from a subscription and acknowledging, in transactions and outside of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Self

from txnframework.broker import Host, SegmentDispatch, acks_of, cumulative_ack, first_of
from txnframework.client._closing import client_closed, close_after, require_open
from txnframework.client._dead_letters import DeadLetters
from txnframework.client._feed import Feed, Inbox, by_segment
from txnframework.client._membership import Membership
from txnframework.client._messages import Message, MessageID
from txnframework.client._seeking import LATE_IDS, Target, entry_before, partly_moved, sought
from txnframework.client._terms import Terms
from txnframework.client._transaction import TransactionPart, part_of
from txnframework.errors import Closed, InvalidInput, NotFound, OutcomeUnknown, ReceiveTimeout, Unavailable
from txnframework.model.acks import Ack, AckRequest
from txnframework.model.entries import EntryView
from txnframework.model.ids import Branch
from txnframework.model.names import SegmentName, TopicName, topic_of
from txnframework.model.positions import Limit
from txnframework.model.reading import Isolation, ReadRequest

Acked = Message | MessageID


class Consumer:
    """
    Receives from one subscription; made by ``Client.consumer``.

    Everything is delivered until it is acknowledged; what a transaction acknowledged is delivered again if that
    aborts. ``async for`` goes on until the consumer is closed.
    """

    def __init__(
        self,
        host: Host,
        targets: tuple[TopicName | SegmentName, ...],
        terms: Terms,
        dead_letters: Callable[[Consumer], DeadLetters] | None = None,
    ) -> None:
        self.subscription = terms.subscription
        self.name = terms.name
        self._host = host
        self._terms = terms
        self._targets = targets
        self._inbox = Inbox()
        self._news = asyncio.Event()
        self._closed = False
        self._dead_letters = None if dead_letters is None else dead_letters(self)
        self._membership = Membership(host, targets, terms, self._inbox, self._news.set)

    def __repr__(self) -> str:
        topics = ", ".join(map(str, self._targets))
        return (
            f"<Consumer {self.name} of {topics}, subscription {self.subscription}{', closed' if self._closed else ''}>"
        )

    async def join(self) -> None:
        """Attach to the segments; ``Client.consumer`` does."""
        await self._membership.join()

    # -- receiving ------------------------------------------------------------------------------------

    async def receive(self, *, timeout_ms: int | None = None) -> Message:
        """
        Return the next message.

        :raises ReceiveTimeout: none came within ``timeout_ms``.
        :raises LeaseLost: another process may dispatch the subscription now; open another consumer. A consumer that
            stands by waits for its turn instead.
        """
        return (await self.receive_many(messages_max=1, timeout_ms=timeout_ms))[0]

    async def receive_many(self, *, messages_max: int, timeout_ms: int | None = None) -> tuple[Message, ...]:
        """Return what is there, at least one message and at most so many; raises as ``receive`` does."""
        if messages_max < 1:
            raise InvalidInput(f"messages_max is {messages_max}, and has to be at least 1")
        environment = self._host.environment
        deadline_ms = None if timeout_ms is None else environment.now_ms() + timeout_ms
        while True:
            self._news.clear()
            self._require_open()
            taken = self._inbox.take(messages_max)
            received = taken if self._dead_letters is None else self._dead_letters.sort_out(taken)
            if received:
                return received
            self._raise_what_failed()
            if taken:
                continue
            if timeout_ms is None or deadline_ms is None:
                await self._news.wait()
            elif environment.now_ms() >= deadline_ms:
                raise ReceiveTimeout(timeout_ms)
            else:
                await first_of(self._news.wait(), environment.sleep_until(deadline_ms))

    async def __aiter__(self) -> AsyncIterator[Message]:
        while not self._closed:
            try:
                message = await self.receive()
            except Closed:
                if self._closed:
                    return
                raise
            yield message

    # -- acknowledging --------------------------------------------------------------------------------

    async def ack(self, *messages: Acked, txn: TransactionPart | None = None) -> None:
        """
        Acknowledge messages one by one: outside transactions durably at once, in ``txn`` if and when it commits.

        What a transaction has acknowledged is not acknowledged outside of it, what is done stays done, and what was
        received before someone sought is not acknowledged.

        :raises SubscriptionNotFound: the subscription was given up.
        :raises TransactionConflict: the transaction has ended, or another one has acknowledged one of them, or one is
            done already; nothing is acknowledged on its segment.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing is acknowledged.
        :raises OutcomeUnknown: as for a cancelled call, they may be acknowledged; acknowledge them again.
        """
        if txn is None:
            await self._ack(messages, None)
            return
        with part_of(txn).operation() as branch:
            await self._ack(messages, branch, txn.principal)

    async def ack_cumulative(self, message: Acked, *, txn: TransactionPart | None = None) -> None:
        """
        Acknowledge a message and everything before it in its segment, and in the segments that this one descends from.

        Not for subscriptions whose consumers share the messages of a segment.

        :raises TransactionConflict: another transaction has acknowledged some of it, or it is done already.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing is acknowledged.
        :raises OutcomeUnknown: as for a cancelled call, some or all of it may be acknowledged.
        """
        if not self._terms.acknowledges_cumulatively:
            raise InvalidInput(
                f"a {self._terms.type} subscription has no order of all its messages, so it cannot acknowledge "
                f"cumulatively"
            )
        if txn is None:
            await self._ack_cumulative(message, None)
            return
        with part_of(txn).operation() as branch:
            await self._ack_cumulative(message, branch, txn.principal)

    async def nack(self, *messages: Acked) -> None:
        """Ask for redelivery of these, after ``subscriptions.redelivery_delay_ms``."""
        self._require_open()
        for segment, some in by_segment(await self._resolved(messages)).items():
            feed = self._feed(segment)
            if feed.attached is not None:
                positions = tuple(one.id.position for one in some)
                delay_ms = self._host.config.subscriptions.redelivery_delay_ms
                feed.attached.dispatch.return_later(feed.attached.consumer_id, positions, delay_ms, feed.unseen)

    async def redeliver_unacknowledged(self) -> None:
        """Ask for everything that this consumer received and did not acknowledge, in order."""
        self._require_open()
        for feed in tuple(self._membership.feeds.values()):
            if feed.attached is not None:
                await feed.attached.dispatch.return_delivered(feed.attached.consumer_id, None, feed.withdraw)

    async def seek(self, to: Target) -> None:
        """
        Move the subscription: to a message, which is delivered next in its segment, to a time in ms since 1970, to the
        ``earliest`` message that is there, or behind the ``latest`` that may be read now.

        Segments that descend from the message's begin anew, others stay. Acknowledgments from before have no effect
        any more, those of open transactions included.

        :raises InvalidInput: it is none of these.
        :raises OutcomeUnknown: it may have been moved, on all of its segments or on some.
        """
        self._require_open()
        membership = self._membership
        moving = await sought(self._host, membership.layouts.values(), tuple(membership.wanted()), to)
        async with membership.reopening(moving):
            moved = False
            for segment, position in moving.items():
                try:
                    subscribed = await self._host.subscription(str(topic_of(segment)), self.subscription, segment)
                    await subscribed.cursor.seek(position)
                    moved = True
                    feed = membership.feeds.get(segment)
                    if feed is not None and feed.attached is not None:
                        await feed.attached.dispatch.refresh()
                except Unavailable as error:
                    if not moved:
                        raise
                    raise partly_moved(self.subscription, segment) from error

    async def close(self) -> None:
        """Leave; what was not acknowledged goes to others. May be repeated."""
        if self._closed:
            return
        if self._dead_letters is not None:
            await self._dead_letters.close()
        self._closed = True
        self._news.set()
        await self._membership.leave()

    def notice(self) -> None:
        """Look again: whoever waits to receive is told of what failed."""
        self._news.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_after(error, self.close)

    # -- one segment ----------------------------------------------------------------------------------

    async def _ack(self, messages: Iterable[Acked], holder: Branch | None, principal: str = "") -> None:
        self._require_open()
        for segment, some in by_segment(await self._resolved(messages)).items():
            for incarnation in sorted({one.incarnation for one in some}):
                sized = tuple((one.id.position, one.batch_size) for one in some if one.incarnation == incarnation)
                dispatch = self._feed(segment).dispatch
                if dispatch is not None:
                    await dispatch.ack(sized, incarnation, holder, principal)
                else:
                    await self._ack_detached(segment, acks_of(sized), incarnation, holder, principal)
                await self._let_successor_look(segment, dispatch)

    async def _ack_cumulative(self, message: Acked, holder: Branch | None, principal: str = "") -> None:
        self._require_open()
        (one,) = await self._resolved((message,))
        for feed in self._membership.ancestors(one.id.segment):
            await self._finish_ancestor(feed, holder, principal)
        sized = (one.id.position, one.batch_size)
        dispatch = self._feed(one.id.segment).dispatch
        if dispatch is not None:
            await dispatch.ack_cumulative(sized, one.incarnation, holder, principal)
        else:
            ack = cumulative_ack(*sized)
            await self._ack_detached(one.id.segment, (ack,), one.incarnation, holder, principal)
        await self._let_successor_look(one.id.segment, dispatch)

    async def _let_successor_look(self, segment: str, asked: SegmentDispatch | None) -> None:
        """
        Let what dispatches a segment now see what was acknowledged elsewhere.

        When a lease is lost in the middle of an acknowledgment, the dispatch that follows may have read before it was
        stored, and have delivered the message again, or be about to: handed out only now, it would come after it was
        done.
        """
        await self._feed(segment).tried.wait()
        dispatch = self._feed(segment).dispatch
        if dispatch is not None and dispatch is not asked:
            try:
                await dispatch.refresh()
            except Unavailable as error:
                raise OutcomeUnknown(f"it was acknowledged, and may be delivered again: {error}") from error

    async def _finish_ancestor(self, feed: Feed, holder: Branch | None, principal: str) -> None:
        """Acknowledge what was received of a segment before the one that it became; it has its own cursor."""
        dispatch = feed.dispatch
        if dispatch is None or feed.last_seen is None:
            return
        last = dispatch.last_unfinished(feed.last_seen)
        if last is not None:
            size = dispatch.batch_size(last) or 1
            await dispatch.ack_cumulative((last, size), dispatch.incarnation, holder, principal)

    async def _ack_detached(
        self, segment: str, acks: tuple[Ack, ...], incarnation: int, holder: Branch | None, principal: str
    ) -> None:
        """Acknowledge on a segment that this consumer has left: all of it was done, or its lease was lost."""
        subscribed = await self._host.subscription(str(topic_of(segment)), self.subscription, segment)
        if holder is None:
            if not await subscribed.cursor.apply(incarnation, acks, None):
                await subscribed.cursor.load()  # as PlainAcks does
        else:
            await subscribed.pending_acks.add(AckRequest(holder, acks, incarnation, principal=principal))

    def _feed(self, segment: str) -> Feed:
        feed = self._membership.feeds.get(segment)
        if feed is None:
            raise InvalidInput(f"this consumer of subscription {self.subscription} receives nothing from {segment}")
        return feed

    async def _resolved(self, messages: Iterable[Acked]) -> list[Message]:
        """Return messages for what may be ids only, with the batch size that acknowledging needs."""
        given = tuple(messages)
        for one in given:
            if not isinstance(one, Message | MessageID):
                hint = "; several are given one by one, as in ack(*messages)" if isinstance(one, list | tuple) else ""
                raise InvalidInput(f"a message, or its id, can be acknowledged, not a {type(one).__name__}{hint}")
        return [one if isinstance(one, Message) else await self._message(one) for one in given]

    async def _message(self, message_id: MessageID) -> Message:
        feed = self._feed(message_id.segment)
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

    def _raise_what_failed(self) -> None:
        for part in (self._membership, self._dead_letters):
            if part is not None and part.error is not None:
                if isinstance(part.error, Closed) and self._host.closing:
                    raise client_closed(self._host) from part.error
                raise part.error

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of subscription {self.subscription} was closed")
        require_open(self._host)
