"""The client without ``await``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txnframework import client as asynchronous
from txnframework.blocking._messages import Consumer, Producer, Reader
from txnframework.blocking._transactions import JoinedTransaction, Transaction
from txnframework.broker import Compactor, HangingTransaction, Lag, LatestByKey, Order, Start
from txnframework.client import DeadLetter, LoopThread, Message, MessageID, Name
from txnframework.model.acks import AckStatus
from txnframework.model.dispatching import DEFAULT_TYPE
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.reading import Isolation
from txnframework.model.transactions import State


class Client:
    """See ``txnframework.Client``."""

    def __init__(self, loop: LoopThread, client: asynchronous.Client) -> None:
        self._loop = loop
        self._client = client

    def __repr__(self) -> str:
        return f"<blocking {self._client!r}>"

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

    def producer(self, topic: Name, *, name: str | None = None) -> Producer:
        """Open a producer; writes nothing."""
        return Producer(self._loop, self._loop.run(self._client.producer(topic, name=name)))

    def consumer(
        self,
        topics: Name | Iterable[Name],
        subscription: str,
        *,
        type: str = DEFAULT_TYPE,
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
        topic: Name,
        *,
        start: MessageID | str = "earliest",
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
    ) -> Reader:
        """Open a reader."""
        opening = self._client.reader(topic, start=start, follow=follow, isolation=isolation, compacted=compacted)
        return Reader(self._loop, self._loop.run(opening))

    def subscribe(self, topic: Name, subscription: str, *, start: Start = "latest") -> None:
        """Make a subscription without joining it; one that is there stays as it is."""
        self._loop.run(self._client.subscribe(topic, subscription, start=start))

    def unsubscribe(self, topic: Name, subscription: str) -> None:
        """Give a subscription up, with everything that it acknowledged."""
        self._loop.run(self._client.unsubscribe(topic, subscription))

    def create_topic(self, topic: Name, *, segments: int = 1, exist_ok: bool = False) -> None:
        """Make a topic of so many segments; with ``exist_ok`` one that is there stays as it is."""
        self._loop.run(self._client.create_topic(topic, segments=segments, exist_ok=exist_ok))

    def seek(self, topic: Name, subscription: str, to: MessageID | int | Start) -> None:
        """Move a subscription, whoever consumes from it."""
        self._loop.run(self._client.seek(topic, subscription, to))

    def lag(self, topic: Name, subscription: str) -> Lag:
        """Return how many messages a subscription may read and has not acknowledged."""
        return self._loop.run(self._client.lag(topic, subscription))

    def undecided(self, topic: Name) -> dict[str, int]:
        """Return, by segment, how many messages may not be read yet because of an open transaction."""
        return self._loop.run(self._client.undecided(topic))

    def peek(self, topic: Name, subscription: str, messages_max: int = 1) -> tuple[Message, ...]:
        """Return the first messages that a subscription has not acknowledged, without delivering them."""
        return self._loop.run(self._client.peek(topic, subscription, messages_max))

    def ack_status(self, subscription: str, message: MessageID) -> AckStatus:
        """Return what became of a message for a subscription."""
        return self._loop.run(self._client.ack_status(subscription, message))

    def compact(
        self, topic: Name, compactor: Callable[[], Compactor] = LatestByKey, *, order: Order = "position"
    ) -> None:
        """Write what is to be kept of a topic beside it, for readers with ``compacted=True``."""
        self._loop.run(self._client.compact(topic, compactor, order=order))

    def upkeep(self) -> None:
        """Do now what clients do in the background: sweep, trim, finish deletions."""
        self._loop.run(self._client.upkeep())

    def delete_topic(self, topic: Name, *, force: bool = False) -> None:
        """Delete a topic with everything in it."""
        self._loop.run(self._client.delete_topic(topic, force=force))

    def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """Delete every topic of a namespace."""
        self._loop.run(self._client.delete_namespace(namespace, force=force))

    def layout(self, topic: Name) -> Layout:
        """Return a topic's segments."""
        return self._loop.run(self._client.layout(topic))

    def split(self, topic: Name, segment_id: int) -> tuple[int, int]:
        """Split an active segment; return the children's ids."""
        return self._loop.run(self._client.split(topic, segment_id))

    def merge(self, topic: Name, segment_id: int, other_id: int) -> int:
        """Merge two active neighbours; return the child's id."""
        return self._loop.run(self._client.merge(topic, segment_id, other_id))
