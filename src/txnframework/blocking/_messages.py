"""Producers, consumers and readers without ``await``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from txnframework import client as asynchronous
from txnframework.blocking._handler_runs import HandlerRuns
from txnframework.blocking._transactions import TransactionPart
from txnframework.broker import Start, UndecidedMessages
from txnframework.client import LoopThread, Message, MessageID, Name, PlannedAck, PlannedSend
from txnframework.client._arguments import several_values
from txnframework.client._content_types import T_co, T_contra
from txnframework.model.names import TopicName

if TYPE_CHECKING:
    from txnframework.serializers import Serializer

T = TypeVar("T")
Acked = Message[Any] | MessageID


class Producer(Generic[T_contra]):
    """The producer without ``await``; see ``txnframework.Producer``."""

    def __init__(self, loop: LoopThread, producer: asynchronous.Producer[T_contra]) -> None:
        self._loop = loop
        self._producer = producer

    def __repr__(self) -> str:
        return f"<blocking {self._producer!r}>"

    @property
    def name(self) -> str:
        """The name by which repeated sends are recognised."""
        return self._producer.name

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
        sending = self._producer.send(
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
        sending = self._producer.send_many(
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
        return self._producer.outgoing(
            value,
            key=key,
            headers=headers,
            sequence_id=sequence_id,
            deliver_at_ms=deliver_at_ms,
            deliver_after_ms=deliver_after_ms,
        )

    def close(self) -> None:
        """Wait for the sends in flight, then release resources."""
        self._loop.run(self._producer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Consumer(HandlerRuns[T_co]):
    """The consumer without ``await``; see ``txnframework.Consumer``. Iteration ends when another thread closes it."""

    def __init__(self, loop: LoopThread, consumer: asynchronous.Consumer[T_co]) -> None:
        self._loop = loop
        self._consumer = consumer

    def __repr__(self) -> str:
        return f"<blocking {self._consumer!r}>"

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return self._consumer.subscription

    @property
    def is_active(self) -> bool:
        """Whether new messages of a segment are given to this consumer."""
        return self._consumer.is_active

    def wait_until(self, *, active: bool) -> None:
        """Return when ``is_active`` has this value."""
        self._loop.run(self._consumer.wait_until(active=active))

    def receive(self, *, timeout_ms: int | None = None) -> Message[T_co]:
        """Return the next message, or raise ReceiveTimeout."""
        return self._loop.run(self._consumer.receive(timeout_ms=timeout_ms))

    def receive_many(self, *, messages_max: int, timeout_ms: int | None = None) -> tuple[Message[T_co], ...]:
        """Return at least one and at most ``messages_max`` messages."""
        return self._loop.run(self._consumer.receive_many(messages_max=messages_max, timeout_ms=timeout_ms))

    def __iter__(self) -> Iterator[Message[T_co]]:
        return _iterate(self._loop, self._consumer)

    def ack(self, *messages: Acked, txn: TransactionPart | None = None) -> None:
        """Acknowledge messages individually."""
        self._loop.run(self._consumer.ack(*messages, txn=_part(txn)))

    def acknowledging(self, *messages: Acked) -> PlannedAck:
        """Return acknowledgments for ``Client.transact``, which makes them."""
        return self._consumer.acknowledging(*messages)

    def ack_cumulative(self, message: Acked, *, txn: TransactionPart | None = None) -> None:
        """Acknowledge a message and everything before it in its segment."""
        self._loop.run(self._consumer.ack_cumulative(message, txn=_part(txn)))

    def nack(self, *messages: Acked, delay_ms: int | None = None) -> None:
        """Request redelivery of these messages after a delay."""
        self._loop.run(self._consumer.nack(*messages, delay_ms=delay_ms))

    def pause(self) -> None:
        """Receive nothing more until ``resume``; other consumers get the messages that were not received yet."""

        async def pause() -> None:
            self._consumer.pause()

        self._loop.run(pause())

    def resume(self) -> None:
        """Receive messages again, after ``pause``."""

        async def resume() -> None:
            self._consumer.resume()

        self._loop.run(resume())

    def redeliver_unacknowledged(self) -> None:
        """Request redelivery, in order, of all messages that were received and not acknowledged."""
        self._loop.run(self._consumer.redeliver_unacknowledged())

    def seek(self, to: MessageID | int | Start) -> None:
        """Move the subscription to a message, to a time in ms since 1970, or to ``earliest`` or ``latest``."""
        self._loop.run(self._consumer.seek(to))

    def close(self) -> None:
        """Leave the subscription; unacknowledged messages go to other consumers."""
        self._loop.run(self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reader(Generic[T_co]):
    """The reader without ``await``; see ``txnframework.Reader``."""

    def __init__(self, loop: LoopThread, reader: asynchronous.Reader[T_co]) -> None:
        self._loop = loop
        self._reader = reader

    def __repr__(self) -> str:
        return f"<blocking {self._reader!r}>"

    def __iter__(self) -> Iterator[Message[T_co]]:
        return _iterate(self._loop, self._reader)

    @property
    def undecided(self) -> tuple[UndecidedMessages, ...]:
        """What it does not return, by segment, because it waited for an open transaction."""
        return self._reader.undecided

    def close(self) -> None:
        """Release resources and end the iteration."""
        self._loop.run(self._reader.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Snapshot:
    """The snapshot without ``await``; see ``txnframework.Snapshot``."""

    def __init__(self, loop: LoopThread, snapshot: asynchronous.Snapshot) -> None:
        self._loop = loop
        self._snapshot = snapshot

    def __repr__(self) -> str:
        return f"<blocking {self._snapshot!r}>"

    @property
    def topics(self) -> tuple[TopicName, ...]:
        """The topics in it."""
        return self._snapshot.topics

    @property
    def undecided(self) -> tuple[UndecidedMessages, ...]:
        """What is not in it, by segment, because it waited for an open transaction."""
        return self._snapshot.undecided

    @overload
    def reader(self, topic: Name, *, serializer: None = None) -> Reader: ...

    @overload
    def reader(self, topic: Name, *, serializer: Serializer[T]) -> Reader[T]: ...

    def reader(self, topic: Name, *, serializer: Serializer[Any] | None = None) -> Reader[Any]:
        """Open a reader of one of the topics, as it is in the snapshot."""
        open_reader: Any = self._snapshot.reader
        return Reader(self._loop, self._loop.run(open_reader(topic, serializer=serializer)))


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
