"""Consumers: receiving from a subscription and acknowledging, in transactions and outside of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Self

from txnframework.broker import (
    FINISHED_ELSEWHERE,
    GIVEN_UP,
    Host,
    SegmentDispatch,
    acks_of,
    cumulative_ack,
    first_completed,
)
from txnframework.client._arguments import time_to_wait_ms, whole_number
from txnframework.client._calls import client_closed, close_after, naming_deletion, require_open, require_topics
from txnframework.client._dead_letters import DeadLetters
from txnframework.client._feed import Feed, Inbox, by_segment
from txnframework.client._membership import Membership
from txnframework.client._messages import Message, MessageID, check_message_id
from txnframework.client._seeking import LATE_IDS, Target, entry_before, partly_moved, sought
from txnframework.client._terms import Terms
from txnframework.client._transaction import TransactionPart, part_of
from txnframework.errors import (
    Closed,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    ReceiveTimeout,
    TransactionConflict,
    Unavailable,
)
from txnframework.model.acks import Ack, AckRequest
from txnframework.model.entries import EntryView
from txnframework.model.ids import Branch
from txnframework.model.names import SegmentName, TopicName, topic_of
from txnframework.model.positions import Limit, Position
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
        self._leaving: asyncio.Task[None] | None = None
        # Seeking takes segments away and brings them back: only one at a time, and not while it leaves.
        self._changing = asyncio.Lock()
        self._membership = Membership(host, targets, terms, self._inbox, self._news.set)

    def __repr__(self) -> str:
        topics = ", ".join(map(str, self._targets))
        return (
            f"<Consumer {self.name} of {topics}, subscription {self.subscription}{', closed' if self._closed else ''}>"
        )

    @property
    def keys(self) -> frozenset[str]:
        """What steps of this consumer are about: its topics."""
        return frozenset(str(target.topic) for target in self._targets)

    async def join(self) -> None:
        """Attach to the segments; ``Client.consumer`` does."""
        await self._membership.join()

    # -- receiving ------------------------------------------------------------------------------------

    async def receive(self, *, timeout_ms: int | None = None) -> Message:
        """
        Return the next message.

        :raises ReceiveTimeout: none came within ``timeout_ms``.
        :raises LeaseLost: with ``stand_by=False``: another process may dispatch the subscription now; open another
            consumer. Any other consumer takes the lease again, or waits for its turn.
        """
        return (await self.receive_many(messages_max=1, timeout_ms=timeout_ms))[0]

    async def receive_many(self, *, messages_max: int, timeout_ms: int | None = None) -> tuple[Message, ...]:
        """Return what is there, at least one message and at most so many; raises as ``receive`` does."""
        whole_number(messages_max, "messages_max", 1)
        time_to_wait_ms(timeout_ms)
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
                await first_completed(self._news.wait(), environment.sleep_until(deadline_ms))

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
        async with self._naming_deletion(messages):
            if txn is None:
                await self._ack(messages, None)
                return
            with part_of(txn).operation() as branch:
                await self._ack(messages, branch, txn.principal)

    async def ack_cumulative(self, message: Acked, *, txn: TransactionPart | None = None) -> None:
        """
        Acknowledge a message and everything before it in its segment, and in the segments that this one descends from.

        Not for subscriptions whose consumers share the messages of a segment.

        In a transaction it stands for everything up to there that this consumer received, and has not acknowledged
        itself before. What was done before this consumer came to it is passed over.

        :raises TransactionConflict: the message is done already, another transaction holds some of it, or somebody else
            has acknowledged some of what it stands for; or the subscription's lease was lost since it was received.
            Abort, and receive again what is left: ``redeliver_unacknowledged`` asks for it.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing is acknowledged.
        :raises OutcomeUnknown: as for a cancelled call, some or all of it may be acknowledged.
        """
        if not self._terms.acknowledges_cumulatively:
            raise InvalidInput(
                f"a {self._terms.type.name} subscription has no order of all its messages, so it cannot acknowledge "
                f"cumulatively"
            )
        async with self._naming_deletion((message,)):
            if txn is None:
                await self._ack_cumulative(message, None)
                return
            with part_of(txn).operation() as branch:
                await self._ack_cumulative(message, branch, txn.principal)

    async def nack(self, *messages: Acked) -> None:
        """Ask for redelivery of these, after ``subscriptions.redelivery_delay_ms``."""
        self._require_open()
        async with self._naming_deletion(messages):
            for segment, some in by_segment(await self._resolved(messages)).items():
                feed = self._feed(segment)
                if feed.attached is not None and feed.attached.dispatch.ended is None:
                    positions = tuple(one.id.position for one in some)
                    delay_ms = self._host.config.subscriptions.redelivery_delay_ms
                    feed.attached.dispatch.return_later(feed.attached.consumer_id, positions, delay_ms, feed.unseen)
                else:
                    await require_topics(self._host, (self._membership.layouts[topic_of(segment)],))

    async def redeliver_unacknowledged(self) -> None:
        """Ask for everything that this consumer received and did not acknowledge, in order."""
        self._require_open()
        async with self._naming_deletion():
            for feed in tuple(self._membership.feeds.values()):
                if feed.attached is None:
                    feed.renounce()
                else:
                    # Where it does not come to that, the user keeps its part in what it has received.
                    await feed.attached.dispatch.return_delivered(feed.attached.consumer_id, None, feed.renounce)

    async def seek(self, to: Target) -> None:
        """
        Move the subscription: to a message, which is delivered next in its segment, to a time in ms since 1970, to the
        ``earliest`` message that is there, or behind the ``latest`` that may be read now.

        Segments that descend from the message's begin anew, others stay. Acknowledgments from before have no effect
        any more, those of open transactions included.

        Cancelled: it is moved all the same, and the next call about these topics waits for that.

        :raises InvalidInput: it is none of these.
        :raises OutcomeUnknown: it may have been moved, on all of its segments or on some.
        """
        self._require_open()
        async with self._naming_deletion():
            await self._host.steps.finish(partial(self._seek_in_turn, to), self.keys)

    async def close(self) -> None:
        """
        Leave; what was not acknowledged goes to others. May be repeated.

        Cancelled: it leaves all the same. Closing again waits for that, and so does the next consumer of these topics
        that this client opens.
        """
        if self._leaving is None or _failed(self._leaving):
            self._leaving = self._host.steps.begin(self._leave, self.keys)
        await self._host.steps.end_of(self._leaving, self.keys)

    async def _leave(self) -> None:
        if self._dead_letters is not None:
            await self._dead_letters.close()
        self._closed = True
        self._news.set()
        async with self._changing:
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

    async def _seek_in_turn(self, to: Target) -> None:
        async with self._changing:
            self._require_open()
            await self._seek(to)

    async def _seek(self, to: Target) -> None:
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

    async def _ack(self, messages: Iterable[Acked], holder: Branch | None, principal: str = "") -> None:
        self._require_open()
        for segment, some in by_segment(await self._resolved(messages)).items():
            for incarnation in sorted({one.incarnation for one in some}):
                sized = tuple((one.id.position, one.batch_size) for one in some if one.incarnation == incarnation)
                feed = self._feed(segment)
                dispatch, attached = feed.dispatch, feed.attached
                if dispatch is not None and attached is not None:
                    await dispatch.ack(sized, incarnation, holder, principal, attached.consumer_id)
                else:
                    await self._ack_detached(segment, acks_of(sized), incarnation, holder, principal)
                await self._let_successor_look(segment, dispatch)
                self._feed(segment).missed.acknowledged((position for position, _ in sized), holder)

    async def _ack_cumulative(self, message: Acked, holder: Branch | None, principal: str = "") -> None:
        self._require_open()
        (one,) = await self._resolved((message,))
        for feed in self._membership.ancestors(one.id.segment):
            await self._finish_ancestor(feed, holder, principal)
        sized = (one.id.position, one.batch_size)
        if holder is not None:
            await self._feed(one.id.segment).missed.resolve()
        feed = self._feed(one.id.segment)
        if holder is not None:
            # Behind everything that takes time: the lease may have been lost in the meantime.
            self._require_current(one, holder)
        dispatch = feed.dispatch
        if dispatch is not None:
            assert feed.attached is not None
            await dispatch.ack_cumulative(sized, one.incarnation, holder, principal, feed.attached.consumer_id)
        else:
            ack = cumulative_ack(*sized)
            await self._ack_detached(one.id.segment, (ack,), one.incarnation, holder, principal)
        await self._let_successor_look(one.id.segment, dispatch)
        if holder is None:
            self._feed(one.id.segment).missed.acknowledged_upto(one.id.position)

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
        if holder is None:
            feed.missed.clear()
        else:
            await feed.missed.resolve()
            self._require_nothing_missed(feed, holder)
        if feed.last_seen is None:
            return
        dispatch, attached = feed.dispatch, feed.attached
        if dispatch is not None and attached is not None:
            await dispatch.ack_given(feed.last_seen, holder, principal, attached.consumer_id)
        elif holder is not None and not feed.finished:
            raise TransactionConflict(holder.txn_id, GIVEN_UP)
        elif holder is not None and feed.first_lost is not None:
            raise TransactionConflict(holder.txn_id, f"{feed.first_lost} {FINISHED_ELSEWHERE}")

    def _require_nothing_missed(self, feed: Feed, holder: Branch, upto: Position | None = None) -> None:
        """Require that what was received under a lease that was lost came again, or was acknowledged here."""
        first = feed.missed.first(upto)
        if first is not None:
            raise TransactionConflict(holder.txn_id, f"{first} {FINISHED_ELSEWHERE}")

    def _require_current(self, message: Message, holder: Branch) -> None:
        """
        Require that a message was received under the lease that this consumer has now.

        Without the lease others get what it had, and nothing here says any more what that was.
        """
        feed = self._feed(message.id.segment)
        self._require_nothing_missed(feed, holder, message.id.position)
        if feed.finished:
            return  # all of it is done, and the store says so
        dispatch, attached = feed.dispatch, feed.attached
        if dispatch is None or attached is None:
            current = False
        elif dispatch.incarnation != message.incarnation:
            return  # someone sought, and the store says so
        elif message.tenure is None:
            # By its id it may be meant as it was received before, unless it was received again.
            current = dispatch.was_given(attached.consumer_id, message.id.position)
        else:
            renounced = dispatch.was_renounced(attached.consumer_id, message.id.position)
            current = message.tenure is dispatch.tenure and not renounced
        if not current:
            raise TransactionConflict(holder.txn_id, GIVEN_UP)

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
            if isinstance(one, MessageID):
                check_message_id(one)
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

    def _naming_deletion(self, messages: Iterable[Acked] | None = None) -> AbstractAsyncContextManager[None]:
        """Name the deletion of a topic of these messages, or of any topic."""
        layouts = self._membership.layouts
        if messages is None:
            return naming_deletion(self._host, layouts.values)
        ids = [one.id if isinstance(one, Message) else one for one in messages]
        topics = {topic_of(one.segment) for one in ids if isinstance(one, MessageID)}
        return naming_deletion(self._host, lambda: [layouts[topic] for topic in topics if topic in layouts])

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of subscription {self.subscription} was closed")
        require_open(self._host)


def _failed(step: asyncio.Task[None]) -> bool:
    return step.done() and (step.cancelled() or step.exception() is not None)
