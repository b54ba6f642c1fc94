"""Producers, consumers and readers without ``await``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic

from txnframework import client as asynchronous
from txnframework.blocking._handler_runs import HandlerRuns
from txnframework.blocking._methods import ClosedByWith, Wrapper, awaited, called
from txnframework.blocking._transactions import TransactionPart
from txnframework.broker import UndecidedMessages
from txnframework.client import LoopThread, Message, MessageID, Name, PlannedAck, PlannedSend
from txnframework.client._arguments import several_values
from txnframework.client._content_types import T, T_co, T_contra
from txnframework.model.names import TopicName

if TYPE_CHECKING:
    from txnframework.serializers import Serializer

Acked = Message[Any] | MessageID


class Producer(ClosedByWith[asynchronous.Producer[T_contra]], Generic[T_contra]):
    """The producer without ``await``; see ``txnframework.Producer``."""

    @property
    def name(self) -> str:
        """The name by which repeated sends are recognised."""
        return self._asynchronous.name

    def send(
        self,
        value: T_contra | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
    ) -> MessageID:
        """Send a message, and return its id when it is durable."""
        sending = self._asynchronous.send(
            value,
            key=key,
            headers=headers,
            sequence_id=sequence_id,
            txn=_part(txn),
            deliver_at_ms=deliver_at_ms,
            deliver_after_ms=deliver_after_ms,
        )
        return self._loop.run(sending)

    def send_many(
        self,
        values: Iterable[T_contra | None],
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
    ) -> tuple[MessageID, ...]:
        """Send messages in order, in as few entries as possible; ``sequence_id`` is that of the first one."""
        sending = self._asynchronous.send_many(
            several_values(values),
            key=key,
            headers=headers,
            sequence_id=sequence_id,
            txn=_part(txn),
            deliver_at_ms=deliver_at_ms,
            deliver_after_ms=deliver_after_ms,
        )
        return self._loop.run(sending)

    def outgoing(
        self,
        value: T_contra | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
    ) -> PlannedSend:
        """Return a message for ``Client.transact``, which sends it."""
        return self._asynchronous.outgoing(
            value,
            key=key,
            headers=headers,
            sequence_id=sequence_id,
            deliver_at_ms=deliver_at_ms,
            deliver_after_ms=deliver_after_ms,
        )

    close = awaited(asynchronous.Producer.close)


class Consumer(HandlerRuns[T_co]):
    """The consumer without ``await``; see ``txnframework.Consumer``. Iteration ends when another thread closes it."""

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return self._asynchronous.subscription

    @property
    def is_active(self) -> bool:
        """Whether new messages of a segment are given to this consumer."""
        return self._asynchronous.is_active

    wait_until = awaited(asynchronous.Consumer.wait_until)

    def receive(self, *, timeout_ms: int | None = None) -> Message[T_co]:
        """Return the next message, or raise ReceiveTimeout."""
        return self._loop.run(self._asynchronous.receive(timeout_ms=timeout_ms))

    def receive_many(self, *, messages_max: int, timeout_ms: int | None = None) -> tuple[Message[T_co], ...]:
        """Return at least one and at most ``messages_max`` messages."""
        return self._loop.run(self._asynchronous.receive_many(messages_max=messages_max, timeout_ms=timeout_ms))

    def __iter__(self) -> Iterator[Message[T_co]]:
        return _iterate(self._loop, self._asynchronous)

    def ack(self, *messages: Acked, txn: TransactionPart | None = None) -> None:
        """Acknowledge messages individually."""
        self._loop.run(self._asynchronous.ack(*messages, txn=_part(txn)))

    def acknowledging(self, *messages: Acked) -> PlannedAck:
        """Return acknowledgments for ``Client.transact``, which makes them."""
        return self._asynchronous.acknowledging(*messages)

    def ack_cumulative(self, message: Acked, *, txn: TransactionPart | None = None) -> None:
        """Acknowledge a message and everything before it in its segment."""
        self._loop.run(self._asynchronous.ack_cumulative(message, txn=_part(txn)))

    nack = awaited(asynchronous.Consumer.nack)
    pause = called(asynchronous.Consumer.pause)
    resume = called(asynchronous.Consumer.resume)
    redeliver_unacknowledged = awaited(asynchronous.Consumer.redeliver_unacknowledged)
    seek = awaited(asynchronous.Consumer.seek)
    close = awaited(asynchronous.Consumer.close)


class Reader(ClosedByWith[asynchronous.Reader[T_co]], Generic[T_co]):
    """The reader without ``await``; see ``txnframework.Reader``."""

    def __iter__(self) -> Iterator[Message[T_co]]:
        return _iterate(self._loop, self._asynchronous)

    @property
    def undecided(self) -> tuple[UndecidedMessages, ...]:
        """What it does not return, by segment, because it waited for an open transaction."""
        return self._asynchronous.undecided

    close = awaited(asynchronous.Reader.close)


class Snapshot(Wrapper[asynchronous.Snapshot]):
    """The snapshot without ``await``; see ``txnframework.Snapshot``."""

    @property
    def topics(self) -> tuple[TopicName, ...]:
        """The topics in it."""
        return self._asynchronous.topics

    @property
    def undecided(self) -> tuple[UndecidedMessages, ...]:
        """What is not in it, by segment, because it waited for an open transaction."""
        return self._asynchronous.undecided

    def reader(self, topic: Name, *, serializer: Serializer[T] | None = None) -> Reader[T]:
        """Open a reader of one of the topics, as it is in the snapshot."""
        return Reader(self._loop, self._loop.run(self._asynchronous.reader(topic, serializer=serializer)))


def _part(txn: TransactionPart | None) -> asynchronous.TransactionPart | None:
    return None if txn is None else txn.asynchronous


def _iterate(
    loop: LoopThread, messages: asynchronous.Consumer[T_co] | asynchronous.Reader[T_co]
) -> Iterator[Message[T_co]]:
    steps = aiter(messages)

    async def following() -> Message[T_co] | None:
        return await anext(steps, None)

    while (message := loop.run(following())) is not None:
        yield message
