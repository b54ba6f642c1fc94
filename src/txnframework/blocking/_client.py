"""The client without ``await``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from txnframework import client as asynchronous
from txnframework.blocking._messages import Consumer, Producer, Reader, Snapshot
from txnframework.blocking._transactions import JoinedTransaction, Transaction
from txnframework.broker import (
    Compactor,
    FamilyStatus,
    HangingTransaction,
    HeldLease,
    Lag,
    LatestByKey,
    Order,
    Start,
    SubscriptionPosition,
    TopicDescription,
)
from txnframework.client import DeadLetter, LoopThread, Message, MessageID, Name, Ping, PlannedAck, PlannedSend
from txnframework.model.acks import AckStatus
from txnframework.model.dispatch import DEFAULT_TYPE, TypeName
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.reads import Isolation
from txnframework.model.transactions import State
from txnframework.model.transactions import Transaction as TransactionFacts

if TYPE_CHECKING:
    from txnframework.serializers import Serializer

T = TypeVar("T")


class Client:
    """The client without ``await``; see ``txnframework.Client`` for parameters and errors."""

    def __init__(self, loop: LoopThread, client: asynchronous.Client) -> None:
        self._loop = loop
        self._client = client

    def __repr__(self) -> str:
        return f"<blocking {self._client!r}>"

    def ping(self, *, timeout_ms: int = 5_000) -> Ping:
        """Read from both stores once, or raise Unavailable."""
        return self._loop.run(self._client.ping(timeout_ms=timeout_ms))

    def transaction(
        self,
        *,
        timeout_ms: int | None = None,
        principal: str = "",
        outlives_client: bool = False,
        domain: str = "segment",
        namespace: str = "",
        commit_with: object | None = None,
    ) -> Transaction:
        """
        Create a transaction; it begins on entering ``with``.

        :param commit_with: a connection of a driver that blocks, or a session of one. It is used only in the thread
            that enters and leaves ``with``.
        """

        async def make() -> asynchronous.Transaction:
            return self._client.transaction(
                timeout_ms=timeout_ms,
                principal=principal,
                outlives_client=outlives_client,
                domain=domain,
                namespace=namespace,
                commit_with=commit_with,
            )

        return Transaction(self._loop, self._loop.run(make()))

    def transact(
        self,
        *operations: PlannedSend | PlannedAck,
        timeout_ms: int | None = None,
        principal: str = "",
        commit_with: object | None = None,
    ) -> tuple[MessageID, ...]:
        """
        Begin a transaction, perform these operations in it, and commit; return the ids of the messages, in order.

        :param commit_with: a connection of a driver that blocks, or a session of one. It is used only in this thread.
        """
        return self._loop.run(
            self._client.transact(*operations, timeout_ms=timeout_ms, principal=principal, commit_with=commit_with)
        )

    def join(self, txn_id: TxnID | str, *, principal: str = "") -> JoinedTransaction:
        """Take part in a transaction of another process, under a random branch."""

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
        """Settle an ended transaction now, and return the number of operations that could not be settled."""
        return self._loop.run(self._client.settle(txn_id))

    def find_hanging(
        self, age_ms_min: int = 60_000, *, after: HangingTransaction | None = None, transactions_max: int = 100
    ) -> tuple[HangingTransaction, ...]:
        """Return transactions that need attention: long open, or ended long ago and not settled."""
        return self._loop.run(self._client.find_hanging(age_ms_min, after=after, transactions_max=transactions_max))

    @overload
    def producer(
        self, topic: Name, *, name: str | None = None, serializer: None = None, stop_after_failure: bool = False
    ) -> Producer: ...

    @overload
    def producer(
        self, topic: Name, *, name: str | None = None, serializer: Serializer[T], stop_after_failure: bool = False
    ) -> Producer[T]: ...

    def producer(
        self,
        topic: Name,
        *,
        name: str | None = None,
        serializer: Serializer[Any] | None = None,
        stop_after_failure: bool = False,
    ) -> Producer[Any]:
        """Open a producer; nothing is written to the stores."""
        open_producer: Any = self._client.producer
        opening = open_producer(topic, name=name, serializer=serializer, stop_after_failure=stop_after_failure)
        return Producer(self._loop, self._loop.run(opening))

    @overload
    def consumer(
        self,
        topics: Name | Iterable[Name],
        subscription: str,
        *,
        type: TypeName = DEFAULT_TYPE,
        start: Start = "latest",
        name: str | None = None,
        priority: int = 0,
        stand_by: bool | None = None,
        balance: bool | None = None,
        dead_letter: DeadLetter | None = None,
        serializer: None = None,
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        topics: Name | Iterable[Name],
        subscription: str,
        *,
        type: TypeName = DEFAULT_TYPE,
        start: Start = "latest",
        name: str | None = None,
        priority: int = 0,
        stand_by: bool | None = None,
        balance: bool | None = None,
        dead_letter: DeadLetter | None = None,
        serializer: Serializer[T],
    ) -> Consumer[T]: ...

    def consumer(
        self,
        topics: Name | Iterable[Name],
        subscription: str,
        *,
        type: TypeName = DEFAULT_TYPE,
        start: Start = "latest",
        name: str | None = None,
        priority: int = 0,
        stand_by: bool | None = None,
        balance: bool | None = None,
        dead_letter: DeadLetter | None = None,
        serializer: Serializer[Any] | None = None,
    ) -> Consumer[Any]:
        """Join a subscription; create it if it does not exist."""
        join: Any = self._client.consumer
        joining = join(
            topics,
            subscription,
            type=type,
            start=start,
            name=name,
            priority=priority,
            stand_by=stand_by,
            balance=balance,
            dead_letter=dead_letter,
            serializer=serializer,
        )
        return Consumer(self._loop, self._loop.run(joining))

    @overload
    def reader(
        self,
        topic: Name,
        *,
        start: MessageID | str = "earliest",
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
        serializer: None = None,
    ) -> Reader: ...

    @overload
    def reader(
        self,
        topic: Name,
        *,
        start: MessageID | str = "earliest",
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
        serializer: Serializer[T],
    ) -> Reader[T]: ...

    def reader(
        self,
        topic: Name,
        *,
        start: MessageID | str = "earliest",
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
        serializer: Serializer[Any] | None = None,
    ) -> Reader[Any]:
        """Open a reader of a topic or of one segment."""
        open_reader: Any = self._client.reader
        opening = open_reader(
            topic, start=start, follow=follow, isolation=isolation, compacted=compacted, serializer=serializer
        )
        return Reader(self._loop, self._loop.run(opening))

    def snapshot(self, *topics: Name) -> Snapshot:
        """Return a snapshot of several topics, which never shows a part of a transaction."""
        return Snapshot(self._loop, self._loop.run(self._client.snapshot(*topics)))

    def subscribe(self, topic: Name, subscription: str, *, start: Start = "latest") -> None:
        """Create a subscription without joining it; an existing one is not changed."""
        self._loop.run(self._client.subscribe(topic, subscription, start=start))

    def unsubscribe(self, topic: Name, subscription: str) -> None:
        """Delete a subscription together with its acknowledgments."""
        self._loop.run(self._client.unsubscribe(topic, subscription))

    def create_topic(self, topic: Name, *, segments: int = 1, exist_ok: bool = False) -> None:
        """Create a topic with this many segments; with ``exist_ok`` an existing one is not changed."""
        self._loop.run(self._client.create_topic(topic, segments=segments, exist_ok=exist_ok))

    def seek(self, topic: Name, subscription: str, to: MessageID | int | Start) -> None:
        """Move a subscription, also while it has consumers."""
        self._loop.run(self._client.seek(topic, subscription, to))

    def lag(self, topic: Name, subscription: str) -> Lag:
        """Return how many readable messages a subscription has not acknowledged, by segment."""
        return self._loop.run(self._client.lag(topic, subscription))

    def dispatchers(self, topic: Name, subscription: str) -> dict[str, str]:
        """Return, by segment, the process that dispatches a subscription's messages now."""
        return self._loop.run(self._client.dispatchers(topic, subscription))

    def undecided(self, topic: Name) -> dict[str, int]:
        """Return, by segment, how many messages cannot be read yet because of an open transaction."""
        return self._loop.run(self._client.undecided(topic))

    def peek(self, topic: Name, subscription: str, messages_max: int = 1) -> tuple[Message, ...]:
        """Return the first messages that a subscription has not acknowledged, without delivering them."""
        return self._loop.run(self._client.peek(topic, subscription, messages_max))

    def ack_status(self, subscription: str, message: MessageID) -> AckStatus:
        """Return a message's state in a subscription: acknowledged, pending in an open transaction, or neither."""
        return self._loop.run(self._client.ack_status(subscription, message))

    def compact(
        self, topic: Name, compactor: Callable[[], Compactor] = LatestByKey, *, order: Order = "position"
    ) -> None:
        """Write a compacted copy of a topic for readers with ``compacted=True``."""
        self._loop.run(self._client.compact(topic, compactor, order=order))

    def maintain(self) -> None:
        """Do the background work of clients now: sweep transactions, trim topics, finish deletions."""
        self._loop.run(self._client.maintain())

    def delete_topic(self, topic: Name, *, force: bool = False) -> None:
        """Delete a topic with its messages, its subscriptions and its transaction records."""
        self._loop.run(self._client.delete_topic(topic, force=force))

    def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """Delete every topic of a namespace."""
        self._loop.run(self._client.delete_namespace(namespace, force=force))

    def layout(self, topic: Name) -> Layout:
        """Return a topic's segments."""
        return self._loop.run(self._client.layout(topic))

    def list_topics(
        self,
        namespace: str = "",
        *,
        domain: str = "",
        after: Name | None = None,
        topics_max: int = 1_000,
    ) -> tuple[Layout, ...]:
        """Return the layouts of a page of topics."""
        return self._loop.run(self._client.list_topics(namespace, domain=domain, after=after, topics_max=topics_max))

    def last_message(self, topic: Name) -> MessageID | None:
        """Return the id of the last message that can be read now; None: there is none."""
        return self._loop.run(self._client.last_message(topic))

    def last_sequence_id(self, topic: Name, producer: str) -> int | None:
        """Return the highest sequence id of a producer name that the topic remembers; None: it remembers none."""
        return self._loop.run(self._client.last_sequence_id(topic, producer))

    def describe_topic(self, topic: Name) -> TopicDescription:
        """Return the segments of a topic with their positions, and its subscriptions with their backlogs."""
        return self._loop.run(self._client.describe_topic(topic))

    def describe_subscription(self, topic: Name, subscription: str) -> tuple[SubscriptionPosition, ...]:
        """Return the positions of a subscription, and the open transactions that acknowledged messages there."""
        return self._loop.run(self._client.describe_subscription(topic, subscription))

    def describe_transaction(self, txn_id: TxnID | str) -> TransactionFacts:
        """Return what the stores know of a transaction: its state, times, owner and participants."""
        return self._loop.run(self._client.describe_transaction(txn_id))

    def count_transactions(self) -> tuple[FamilyStatus, ...]:
        """Return the numbers of open transactions and of unsettled operations, by family."""
        return self._loop.run(self._client.count_transactions())

    def leases(self, prefix: str = "", *, after: str = "", leases_max: int = 1_000) -> tuple[HeldLease, ...]:
        """Return a page of the leases that are held now."""
        return self._loop.run(self._client.leases(prefix, after=after, leases_max=leases_max))

    def transaction_domain(self, topic: Name) -> str:
        """Return the ``domain`` with which a transaction on a topic begins, also after the topic has migrated."""
        return self._loop.run(self._client.transaction_domain(topic))

    def split(self, topic: Name, segment_id: int) -> tuple[int, int]:
        """Split an active segment, and return the ids of the two children."""
        return self._loop.run(self._client.split(topic, segment_id))

    def merge(self, topic: Name, segment_id: int, other_id: int) -> int:
        """Merge two active neighbours, and return the id of the child."""
        return self._loop.run(self._client.merge(topic, segment_id, other_id))
