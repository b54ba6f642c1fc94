"""The client without ``await``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework import client as asynchronous
from txnframework.blocking._messages import Consumer, Producer, Reader, Snapshot
from txnframework.blocking._methods import Wrapper, awaited
from txnframework.blocking._transactions import JoinedTransaction, Transaction
from txnframework.broker import Start
from txnframework.client import DeadLetter, MessageID, Name
from txnframework.client._content_types import T
from txnframework.model.dispatch import DEFAULT_TYPE, TypeName
from txnframework.model.ids import TxnID
from txnframework.model.reads import Isolation

if TYPE_CHECKING:
    from txnframework.serializers import Serializer


class Client(Wrapper[asynchronous.Client]):
    """The client without ``await``; see ``txnframework.Client`` for parameters and errors."""

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
            return self._asynchronous.transaction(
                timeout_ms=timeout_ms,
                principal=principal,
                outlives_client=outlives_client,
                domain=domain,
                namespace=namespace,
                commit_with=commit_with,
            )

        return Transaction(self._loop, self._loop.run(make()))

    def join(self, txn_id: TxnID | str, *, principal: str = "") -> JoinedTransaction:
        """Take part in a transaction of another process, under a random branch."""

        async def join() -> asynchronous.JoinedTransaction:
            return self._asynchronous.join(txn_id, principal=principal)

        return JoinedTransaction(self._loop, self._loop.run(join()))

    def producer(
        self,
        topic: Name,
        *,
        name: str | None = None,
        serializer: Serializer[T] | None = None,
        stop_after_failure: bool = False,
    ) -> Producer[T]:
        """Open a producer; nothing is written to the stores."""
        opening = self._asynchronous.producer(
            topic, name=name, serializer=serializer, stop_after_failure=stop_after_failure
        )
        return Producer(self._loop, self._loop.run(opening))

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
        serializer: Serializer[T] | None = None,
    ) -> Consumer[T]:
        """Join a subscription; create it if it does not exist."""
        joining = self._asynchronous.consumer(
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

    def reader(
        self,
        topic: Name,
        *,
        start: MessageID | str = "earliest",
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
        serializer: Serializer[T] | None = None,
    ) -> Reader[T]:
        """Open a reader of a topic or of one segment."""
        opening = self._asynchronous.reader(
            topic, start=start, follow=follow, isolation=isolation, compacted=compacted, serializer=serializer
        )
        return Reader(self._loop, self._loop.run(opening))

    def snapshot(self, *topics: Name) -> Snapshot:
        """Return a snapshot of several topics, which never shows a part of a transaction."""
        return Snapshot(self._loop, self._loop.run(self._asynchronous.snapshot(*topics)))

    # A connection that is passed to ``transact`` is of a driver that blocks, and is used only in the calling thread.
    transact = awaited(asynchronous.Client.transact)
    outcome = awaited(asynchronous.Client.outcome)
    commit = awaited(asynchronous.Client.commit)
    abort = awaited(asynchronous.Client.abort)
    settle = awaited(asynchronous.Client.settle)
    find_hanging = awaited(asynchronous.Client.find_hanging)
    describe_transaction = awaited(asynchronous.Client.describe_transaction)
    count_transactions = awaited(asynchronous.Client.count_transactions)
    transaction_domain = awaited(asynchronous.Client.transaction_domain)

    create_topic = awaited(asynchronous.Client.create_topic)
    delete_topic = awaited(asynchronous.Client.delete_topic)
    delete_namespace = awaited(asynchronous.Client.delete_namespace)
    list_topics = awaited(asynchronous.Client.list_topics)
    describe_topic = awaited(asynchronous.Client.describe_topic)
    layout = awaited(asynchronous.Client.layout)
    split = awaited(asynchronous.Client.split)
    merge = awaited(asynchronous.Client.merge)
    compact = awaited(asynchronous.Client.compact)
    undecided = awaited(asynchronous.Client.undecided)
    last_message = awaited(asynchronous.Client.last_message)
    last_sequence_id = awaited(asynchronous.Client.last_sequence_id)

    subscribe = awaited(asynchronous.Client.subscribe)
    unsubscribe = awaited(asynchronous.Client.unsubscribe)
    seek = awaited(asynchronous.Client.seek)
    lag = awaited(asynchronous.Client.lag)
    peek = awaited(asynchronous.Client.peek)
    ack_status = awaited(asynchronous.Client.ack_status)
    describe_subscription = awaited(asynchronous.Client.describe_subscription)
    dispatchers = awaited(asynchronous.Client.dispatchers)

    ping = awaited(asynchronous.Client.ping)
    maintain = awaited(asynchronous.Client.maintain)
    leases = awaited(asynchronous.Client.leases)
