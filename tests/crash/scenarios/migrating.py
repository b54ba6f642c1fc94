"""Migrations of a topic between families, with transactions of both under way."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from crash_scenario import BILLING, PATIENCE_MS, Scenario

from txnframework import Client, Message, State
from txnframework.errors import (
    Conflict,
    OutcomeUnknown,
    TransactionNotFound,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.model import TopicName

OLD, NEW = "persistent://public/default/orders", "topic://public/default/orders"
TRIES_MAX = 20
TAKEN = 4


class Migrate(Scenario):
    """
    A topic migrates with messages of ended and open transactions, and with acknowledgments in them.

    The bystander sends, receives and acknowledges in transactions all the while: as the topic's family asks, and again
    after a conflict.
    """

    topics: ClassVar = {OLD: 1}
    subscriptions: ClassVar = ((OLD, BILLING),)
    watcher_acknowledges = True

    async def arrange(self, client: Client) -> None:
        self.story.former[NEW] = OLD
        await self.in_bystander(self.bystander.topics.subscribe(TopicName.parse(OLD), BILLING, "earliest"))
        self.producer = await self.bystander.producer(OLD)
        await self.in_bystander(self.begin())
        self.traffic = self.world.machines["bystander"].spawn(self.use_meanwhile())

    async def begin(self) -> None:
        for value in (b"plain", b"to be acknowledged", b"held", b"later"):
            await self.story.send(self.producer, value)
        kept, dropped, self.left = (self.bystander.transaction(domain="persistent") for _ in range(3))
        for txn, value in ((kept, b"kept"), (dropped, b"dropped"), (self.left, b"left")):
            await txn.begin()
            await self.story.send(self.producer, value, txn=txn)
        self.consumer, received = await self.receive(self.bystander, OLD, TAKEN)
        await self.story.ack(self.consumer, received[0])
        await self.story.ack(self.consumer, received[1], txn=kept)
        await self.story.ack(self.consumer, received[2], txn=self.left)
        await self.story.commit(kept)
        await self.story.abort(dropped)

    async def use_meanwhile(self) -> None:
        for number in range(2):
            await self.story.send(self.producer, b"meanwhile %d" % number)
            await self.in_transaction(b"in transaction %d" % number)
        with contextlib.suppress(TxnFrameworkError):  # aborted by the migration
            await self.story.commit(self.left)
        await self.in_transaction(b"at last")

    async def in_transaction(self, value: bytes) -> None:
        """Send and acknowledge in one transaction, in another one if it was aborted, as a handler does."""
        message: Message | None = None
        for number in range(TRIES_MAX):
            txn = self.bystander.transaction(domain=await self.bystander.transaction_domain(OLD))
            await txn.begin()
            try:
                await self.story.send(self.producer, b"%s, try %d" % (value, number), txn=txn)
                message = message or await self.consumer.receive(timeout_ms=PATIENCE_MS)
                await self.story.ack(self.consumer, message, txn=txn)
                await self.story.commit(txn)
            except (Conflict, OutcomeUnknown, Unavailable):
                with contextlib.suppress(TxnFrameworkError):
                    await txn.abort()
                try:
                    if await self.bystander.outcome(txn.id) is State.COMMITTED:
                        return
                except TransactionNotFound:
                    pass
                # It is delivered again, or was acknowledged.
                message = None
                await self.consumer.redeliver_unacknowledged()
            else:
                return
        raise AssertionError(f"{value!r} was not sent in {TRIES_MAX} transactions")

    async def operate(self, client: Client) -> None:
        await client.topics.migrations.migrate(TopicName.parse(OLD), TopicName.parse(NEW))

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.finish(client)

    async def resume(self, client: Client) -> None:
        await self.finish(client)

    async def finish(self, client: Client) -> None:
        await self.operate(client)
        await self.in_bystander(self.story.send(self.producer, b"after"))
        await self.traffic
        await self.in_bystander(self.consumer.close())

    def check(self) -> None:
        found = self.world.machines["bystander"].do(self.bystander.transaction_domain(OLD))
        assert found == "segment"


class Withdraw(Migrate):
    """A migration is planned and withdrawn; the topic is used as before, and the new name is free."""

    async def operate(self, client: Client) -> None:
        migrations = client.topics.migrations
        await migrations.plan(TopicName.parse(OLD), TopicName.parse(NEW))
        await migrations.withdraw(TopicName.parse(OLD))

    def check(self) -> None:
        bystander = self.world.machines["bystander"]
        assert bystander.do(self.bystander.transaction_domain(OLD)) == "persistent"
        assert bystander.do(self.bystander.topics.list()) == (TopicName.parse(OLD),)


SCENARIOS = (Migrate, Withdraw)
