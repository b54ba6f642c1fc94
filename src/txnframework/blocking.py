"""
The blocking facade: the names of ``txnframework`` without ``await``.

::

    with txnframework.blocking.open("txnframework.toml") as client:
        producer = client.producer("topic://public/default/orders")
        with client.transaction() as txn:
            producer.send(b"one", txn=txn)

One loop thread per process does the work. It is made on first use, and anew after a fork; a client that was opened
before a fork belongs to the parent. The objects may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from txnframework import client as asynchronous
from txnframework.broker import Compactor, HangingTransaction, Lag, LatestByKey, Order, Start
from txnframework.client import ConfigSource, DeadLetter, LoopThread, Message, MessageID
from txnframework.environment import Environment
from txnframework.model.acks import AckStatus
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.reading import Isolation
from txnframework.model.transactions import State
from txnframework.plugin import PluginRegistry

if TYPE_CHECKING:
    from txnframework.metrics import Metrics

__all__ = [
    "Client",
    "Consumer",
    "JoinedTransaction",
    "Message",
    "MessageID",
    "Producer",
    "Reader",
    "Transaction",
    "TransactionPart",
    "open",
]

Acked = Message | MessageID


class TransactionPart:
    """See ``txnframework.TransactionPart``."""

    def __init__(self, loop: LoopThread, part: asynchronous.TransactionPart) -> None:
        self._loop = loop
        self._part = part

    @property
    def id(self) -> TxnID:
        """Its id; another process takes part with ``Client.join``."""
        return self._part.id

    @property
    def branch(self) -> int:
        """The number of this part's branch."""
        return self._part.branch

    @property
    def asynchronous(self) -> asynchronous.TransactionPart:
        """The part that this one stands for."""
        return self._part


class Transaction(TransactionPart):
    """See ``txnframework.Transaction``: ``with`` begins, and commits on success or aborts on an exception."""

    def __init__(self, loop: LoopThread, transaction: asynchronous.Transaction) -> None:
        super().__init__(loop, transaction)
        self._transaction = transaction

    @property
    def state(self) -> State:
        """OPEN, COMMITTED or ABORTED, as last seen here."""
        return self._transaction.state

    def begin(self) -> None:
        """Begin it; ``with`` does."""
        self._loop.run(self._transaction.begin())

    def commit(self, branches: Iterable[int] = ()) -> None:
        """Decide that its branch and ``branches`` count."""
        self._loop.run(self._transaction.commit(branches))

    def abort(self) -> None:
        """Abort it; repeating it succeeds."""
        self._loop.run(self._transaction.abort())

    def __enter__(self) -> Self:
        self._loop.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._transaction.__aexit__(kind, error, trace))


class JoinedTransaction(TransactionPart):
    """See ``txnframework.JoinedTransaction``: leaving ``with`` waits for what is in flight."""

    def __init__(self, loop: LoopThread, joined: asynchronous.JoinedTransaction) -> None:
        super().__init__(loop, joined)
        self._joined = joined

    def finish(self) -> int:
        """Wait for what is in flight; return the branch to report."""
        return self._loop.run(self._joined.finish())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._joined.__aexit__(kind, error, trace))


class Producer:
    """See ``txnframework.Producer``."""

    def __init__(self, loop: LoopThread, producer: asynchronous.Producer) -> None:
        self._loop = loop
        self._producer = producer

    @property
    def name(self) -> str:
        """Under which its sends are recognised when they are repeated."""
        return self._producer.name

    def send(
        self,
        value: bytes,
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
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
    ) -> tuple[MessageID, ...]:
        """Send in order, in as few entries as fit; ``sequence_id`` is that of the first one."""
        sending = self._producer.send_many(
            tuple(values), key=key, headers=headers, sequence_id=sequence_id, txn=_part(txn)
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


class Client:
    """See ``txnframework.Client``."""

    def __init__(self, loop: LoopThread, client: asynchronous.Client) -> None:
        self._loop = loop
        self._client = client

    def transaction(
        self,
        *,
        timeout_ms: int | None = None,
        principal: str = "",
        outlives_client: bool = False,
        domain: str = "segment",
        namespace: str = "",
    ) -> Transaction:
        """Make a transaction; it begins on entering ``with``."""

        async def make() -> asynchronous.Transaction:
            return self._client.transaction(
                timeout_ms=timeout_ms,
                principal=principal,
                outlives_client=outlives_client,
                domain=domain,
                namespace=namespace,
            )

        return Transaction(self._loop, self._loop.run(make()))

    def join(self, txn_id: TxnID | str, *, principal: str = "") -> JoinedTransaction:
        """Take part in another process's transaction under a random branch."""

        async def join() -> asynchronous.JoinedTransaction:
            return self._client.join(txn_id, principal=principal)

        return JoinedTransaction(self._loop, self._loop.run(join()))

    def outcome(self, txn_id: TxnID | str) -> State:
        """Return OPEN, COMMITTED or ABORTED."""
        return self._loop.run(self._client.outcome(txn_id))

    def commit(
        self, txn_id: TxnID | str, branches: Iterable[int] = (), *, principal: str = "", operator: bool = False
    ) -> None:
        """Commit a transaction by its id."""
        self._loop.run(self._client.commit(txn_id, tuple(branches), principal=principal, operator=operator))

    def abort(self, txn_id: TxnID | str, *, principal: str = "", operator: bool = False) -> None:
        """Abort a transaction by its id."""
        self._loop.run(self._client.abort(txn_id, principal=principal, operator=operator))

    def settle(self, txn_id: TxnID | str) -> int:
        """Make an ended transaction's outcome take effect everywhere; return how many operations are left."""
        return self._loop.run(self._client.settle(txn_id))

    def find_hanging(
        self, age_ms_min: int = 60_000, *, after: HangingTransaction | None = None, transactions_max: int = 100
    ) -> tuple[HangingTransaction, ...]:
        """Return transactions that somebody should look at."""
        return self._loop.run(self._client.find_hanging(age_ms_min, after=after, transactions_max=transactions_max))

    def producer(self, topic: str, *, name: str | None = None) -> Producer:
        """Open a producer; writes nothing."""
        return Producer(self._loop, self._loop.run(self._client.producer(topic, name=name)))

    def consumer(
        self,
        topics: str | Iterable[str],
        subscription: str,
        *,
        type: str = "exclusive",
        start: Start = "latest",
        name: str | None = None,
        priority: int = 0,
        stand_by: bool | None = None,
        dead_letter: DeadLetter | None = None,
    ) -> Consumer:
        """Join a subscription, making it if it is not there."""
        joining = self._client.consumer(
            topics,
            subscription,
            type=type,
            start=start,
            name=name,
            priority=priority,
            stand_by=stand_by,
            dead_letter=dead_letter,
        )
        return Consumer(self._loop, self._loop.run(joining))

    def reader(
        self,
        topic: str,
        *,
        start: MessageID | str = "earliest",
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
    ) -> Reader:
        """Open a reader."""
        opening = self._client.reader(topic, start=start, follow=follow, isolation=isolation, compacted=compacted)
        return Reader(self._loop, self._loop.run(opening))

    def subscribe(self, topic: str, subscription: str, *, start: Start = "latest") -> None:
        """Make a subscription without joining it; one that is there stays as it is."""
        self._loop.run(self._client.subscribe(topic, subscription, start=start))

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Give a subscription up, with everything that it acknowledged."""
        self._loop.run(self._client.unsubscribe(topic, subscription))

    def create_topic(self, topic: str, *, segments: int = 1, exist_ok: bool = False) -> None:
        """Make a topic of so many segments; with ``exist_ok`` one that is there stays as it is."""
        self._loop.run(self._client.create_topic(topic, segments=segments, exist_ok=exist_ok))

    def seek(self, topic: str, subscription: str, to: MessageID | int | Start) -> None:
        """Move a subscription, whoever consumes from it."""
        self._loop.run(self._client.seek(topic, subscription, to))

    def lag(self, topic: str, subscription: str) -> Lag:
        """Return how many messages a subscription may read and has not acknowledged."""
        return self._loop.run(self._client.lag(topic, subscription))

    def peek(self, topic: str, subscription: str, messages_max: int = 1) -> tuple[Message, ...]:
        """Return the first messages that a subscription has not acknowledged, without delivering them."""
        return self._loop.run(self._client.peek(topic, subscription, messages_max))

    def ack_status(self, subscription: str, message: MessageID) -> AckStatus:
        """Return what became of a message for a subscription."""
        return self._loop.run(self._client.ack_status(subscription, message))

    def compact(
        self, topic: str, compactor: Callable[[], Compactor] = LatestByKey, *, order: Order = "position"
    ) -> None:
        """Write what is to be kept of a topic beside it, for readers with ``compacted=True``."""
        self._loop.run(self._client.compact(topic, compactor, order=order))

    def upkeep(self) -> None:
        """Do now what clients do in the background: sweep, trim, finish deletions."""
        self._loop.run(self._client.upkeep())

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with everything in it."""
        self._loop.run(self._client.delete_topic(topic, force=force))

    def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """Delete every topic of a namespace."""
        self._loop.run(self._client.delete_namespace(namespace, force=force))

    def layout(self, topic: str) -> Layout:
        """Return a topic's segments."""
        return self._loop.run(self._client.layout(topic))

    def split(self, topic: str, segment_id: int) -> tuple[int, int]:
        """Split an active segment; return the children's ids."""
        return self._loop.run(self._client.split(topic, segment_id))

    def merge(self, topic: str, segment_id: int, other_id: int) -> int:
        """Merge two active neighbours; return the child's id."""
        return self._loop.run(self._client.merge(topic, segment_id, other_id))


@contextmanager
def open(
    config: ConfigSource = None,
    *,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    loop: LoopThread | None = None,
    metrics: Metrics | None = None,
) -> Iterator[Client]:
    """
    Open a client: ``with txnframework.blocking.open(...) as client``; see ``txnframework.open``.

    :param loop: the loop thread to use; default: the one of this process.
    """
    thread = loop or LoopThread.shared()
    opening = asynchronous.open(config, registry=registry, environment=environment, metrics=metrics)
    client = thread.run(_enter(opening))
    try:
        yield Client(thread, client)
    finally:
        thread.run(_leave(opening))


def _part(txn: TransactionPart | None) -> asynchronous.TransactionPart | None:
    return None if txn is None else txn.asynchronous


async def _enter(opening: AbstractAsyncContextManager[asynchronous.Client]) -> asynchronous.Client:
    return await opening.__aenter__()


async def _leave(opening: AbstractAsyncContextManager[asynchronous.Client]) -> None:
    await opening.__aexit__(None, None, None)


def _iterate(loop: LoopThread, messages: asynchronous.Consumer | asynchronous.Reader) -> Iterator[Message]:
    steps = aiter(messages)

    async def following() -> Message | None:
        return await anext(steps, None)

    while (message := loop.run(following())) is not None:
        yield message
