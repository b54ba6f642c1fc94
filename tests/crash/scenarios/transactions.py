"""Transactions: beginning, ending, taking effect, being forgotten, and all of it in one piece."""

from __future__ import annotations

from typing import ClassVar

from crash_scenario import BILLING, INVOICES, ORDERS, Scenario

from txnframework import Client, State
from txnframework.errors import OutcomeUnknown, TxnFrameworkError
from txnframework.model import Reach
from txnframework.model.transactions import Action, End


class Begin(Scenario):
    """The beginning of the process's first transaction: its ids, its session, the header."""

    async def operate(self, client: Client) -> None:
        self.txn = client.transaction()
        await self.txn.begin()

    async def carry_on(self, client: Client, failed: bool) -> None:
        if not failed:
            async with await client.producer(ORDERS) as producer:
                await self.story.send(producer, b"first", txn=self.txn)
            await self.story.commit(self.txn)


class _Prepared(Scenario):
    """A transaction with sends to two topics and acknowledgments, before its end."""

    topics: ClassVar = {ORDERS: 1, INVOICES: 2}
    subscriptions = ((ORDERS, BILLING),)
    outlives_client = False

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"0", b"1", b"2")
        self.consumer, received = await self.receive(client, ORDERS, 3)
        self.txn = client.transaction(outlives_client=self.outlives_client)
        await self.txn.begin()
        for topic in self.topics:
            async with await client.producer(topic) as producer:
                for number in range(2):
                    value = b"%s %d" % (topic.encode(), number)
                    await self.story.send(producer, value, key=b"%d" % number, txn=self.txn)
        await self.story.ack(self.consumer, received[0], received[2], txn=self.txn)


class Commit(_Prepared):
    """The commit, and its outcome taking effect in the background."""

    async def operate(self, client: Client) -> None:
        await self.story.commit(self.txn)

    async def carry_on(self, client: Client, failed: bool) -> None:
        if failed:
            self.story.promise(self.txn.id, await client.outcome(self.txn.id))


class CommitAtOnce(Commit):
    """The commit and its outcome taking effect, in one step of the store."""

    reach = Reach.DATABASE


class Abort(Commit):
    """The abort, and what was acknowledged given back."""

    async def operate(self, client: Client) -> None:
        await self.story.abort(self.txn)


class _Ended(_Prepared):
    """The same transaction, ended where no process settles it."""

    transactions: ClassVar = {"sweep": False}
    outlives_client = True
    action = Action.COMMIT

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        await self.consumer.close()  # or the outcome would take effect where it is dispatched
        self.coordinator = await client.host.coordinator()
        branches = frozenset({0}) if self.action is Action.COMMIT else frozenset[int]()
        ended = await self.coordinator.end(End(self.txn.id, self.action, branches=branches))
        self.story.promise(self.txn.id, ended.state)


class SettleCommitted(_Ended):
    """The outcome of a committed transaction taking effect at its participants, step by step."""

    async def operate(self, client: Client) -> None:
        await self.coordinator.settle(self.txn.id)


class SettleAborted(SettleCommitted):
    """The same for an aborted one: its abort records first."""

    action = Action.ABORT


class CollectCommitted(_Ended):
    """A sweep finds an unsettled transaction past its retention: the sweep settles it, then removes it."""

    transactions: ClassVar = {"sweep": False, "retention_ms": 0}

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        environment = client.host.environment
        await environment.sleep_until(environment.now_ms() + 10_000)

    async def operate(self, client: Client) -> None:
        await self.coordinator.collect(client.host.environment.now_ms())


class CollectAborted(CollectCommitted):
    """The same for an aborted one: what hides its messages stays."""

    action = Action.ABORT


class TransformInOnePiece(Scenario):
    """What a program does: receive, send, acknowledge and commit in one ``async with``."""

    composed = True
    subscriptions = ((ORDERS, BILLING),)

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"0", b"1")
        self.consumer, self.received = await self.receive(client, ORDERS, 2)
        self.producer = await client.producer(INVOICES)

    async def operate(self, client: Client) -> None:
        async with client.transaction() as txn:
            self.txn = txn
            for message in self.received:
                await self.story.send(self.producer, b"invoice " + message.value, key=b"k", txn=txn)
                await self.story.ack(self.consumer, message, txn=txn)
        self.story.promise(txn.id, State.COMMITTED)


class TransformAtOnce(TransformInOnePiece):
    """The same where the commit is one step with its taking effect."""

    reach = Reach.DATABASE


class TransactInAdvance(Scenario):
    """A transaction whose operations are known in advance: one step of the store, in three segments and a cursor."""

    topics: ClassVar = {ORDERS: 1, INVOICES: 2}
    subscriptions = ((ORDERS, BILLING),)
    reach = Reach.DATABASE
    sent = (b"1", b"2", b"3")
    refused = False

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"0")
        self.consumer, (self.order,) = await self.receive(client, ORDERS, 1)
        self.invoices, self.orders = await client.producer(INVOICES), await client.producer(ORDERS)

    async def operate(self, client: Client) -> None:
        first, second, third = self.sent
        sends = {first: self.invoices, second: self.orders, third: self.invoices}
        try:
            await self.story.transact(client, sends, self.consumer, self.order)
        except OutcomeUnknown:
            raise
        except TxnFrameworkError:
            self.refused = True
            raise

    def check(self) -> None:
        async def unacknowledged(client: Client) -> int:
            return (await client.lag(ORDERS, BILLING)).messages

        bystander = self.world.machines["bystander"]
        seen = [one.value for topic in self.topics for one in self.story.seen["the bystander's reader", topic]]
        found = [value in seen for value in self.sent]
        is_acknowledged = bystander.do(unacknowledged(bystander.client)) == int(b"2" in seen)
        assert len({*found, is_acknowledged}) == 1, f"{found} of the messages, acknowledged: {is_acknowledged}"
        assert not (self.refused and is_acknowledged), "nothing took effect, as the caller was told"


SCENARIOS = (
    Begin,
    Commit,
    CommitAtOnce,
    TransformAtOnce,
    TransactInAdvance,
    Abort,
    SettleCommitted,
    SettleAborted,
    CollectCommitted,
    CollectAborted,
    TransformInOnePiece,
)
