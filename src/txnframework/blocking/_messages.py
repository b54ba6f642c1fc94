"""Producers, consumers and readers without ``await``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from txnframework import client as asynchronous
from txnframework.blocking._transactions import TransactionPart
from txnframework.broker import Start
from txnframework.client import LoopThread, Message, MessageID
from txnframework.client._arguments import several_values

Acked = Message | MessageID


class Producer:
    """See ``txnframework.Producer``."""

    def __init__(self, loop: LoopThread, producer: asynchronous.Producer) -> None:
        self._loop = loop
        self._producer = producer

    def __repr__(self) -> str:
        return f"<blocking {self._producer!r}>"

    @property
    def name(self) -> str:
        """Under which its sends are recognised when they are repeated."""
        return self._producer.name

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
    ) -> MessageID:
        """Return where the message stands, once it is durable."""
        return self._loop.run(
            self._producer.send(value, key=key, headers=headers, sequence_id=sequence_id, txn=_part(txn))
        )

    def send_many(
        self,
        values: Iterable[bytes | None],
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
    ) -> tuple[MessageID, ...]:
        """Send in order, in as few entries as fit; ``sequence_id`` is that of the first one."""
        sending = self._producer.send_many(
            several_values(values), key=key, headers=headers, sequence_id=sequence_id, txn=_part(txn)
        )
        return self._loop.run(sending)

    def close(self) -> None:
        """Wait for sends in flight, then let go."""
        self._loop.run(self._producer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Consumer:
    """See ``txnframework.Consumer``; iterating goes on until another thread closes it."""

    def __init__(self, loop: LoopThread, consumer: asynchronous.Consumer) -> None:
        self._loop = loop
        self._consumer = consumer

    def __repr__(self) -> str:
        return f"<blocking {self._consumer!r}>"

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return self._consumer.subscription

    def receive(self, *, timeout_ms: int | None = None) -> Message:
        """Return the next message, or raise ReceiveTimeout."""
        return self._loop.run(self._consumer.receive(timeout_ms=timeout_ms))

    def receive_many(self, *, messages_max: int, timeout_ms: int | None = None) -> tuple[Message, ...]:
        """Return what is there, at least one message and at most so many."""
        return self._loop.run(self._consumer.receive_many(messages_max=messages_max, timeout_ms=timeout_ms))

    def __iter__(self) -> Iterator[Message]:
        return _iterate(self._loop, self._consumer)

    def ack(self, *messages: Acked, txn: TransactionPart | None = None) -> None:
        """Acknowledge messages one by one."""
        self._loop.run(self._consumer.ack(*messages, txn=_part(txn)))

    def ack_cumulative(self, message: Acked, *, txn: TransactionPart | None = None) -> None:
        """Acknowledge a message and everything before it in its segment."""
        self._loop.run(self._consumer.ack_cumulative(message, txn=_part(txn)))

    def nack(self, *messages: Acked) -> None:
        """Ask for redelivery of these."""
        self._loop.run(self._consumer.nack(*messages))

    def redeliver_unacknowledged(self) -> None:
        """Ask for everything that was received and not acknowledged, in order."""
        self._loop.run(self._consumer.redeliver_unacknowledged())

    def seek(self, to: MessageID | int | Start) -> None:
        """Move the subscription to a message, to a time in ms since 1970, or to ``earliest`` or ``latest``."""
        self._loop.run(self._consumer.seek(to))

    def close(self) -> None:
        """Leave; what was not acknowledged goes to others."""
        self._loop.run(self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reader:
    """See ``txnframework.Reader``."""

    def __init__(self, loop: LoopThread, reader: asynchronous.Reader) -> None:
        self._loop = loop
        self._reader = reader

    def __repr__(self) -> str:
        return f"<blocking {self._reader!r}>"

    def __iter__(self) -> Iterator[Message]:
        return _iterate(self._loop, self._reader)

    def close(self) -> None:
        """Let go."""
        self._loop.run(self._reader.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _part(txn: TransactionPart | None) -> asynchronous.TransactionPart | None:
    return None if txn is None else txn.asynchronous


def _iterate(loop: LoopThread, messages: asynchronous.Consumer | asynchronous.Reader) -> Iterator[Message]:
    steps = aiter(messages)

    async def following() -> Message | None:
        return await anext(steps, None)

    while (message := loop.run(following())) is not None:
        yield message
