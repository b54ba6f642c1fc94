"""Two processes at one transaction at the same time: the bystander aborts it while the victim works in it."""

from __future__ import annotations

import asyncio

from crash_scenario import BILLING, INVOICES, ORDERS, Scenario

from txnframework import Client, State
from txnframework.errors import InvalidTransactionState, TransactionConflict, TransactionHasFailedOperations
from txnframework.model import Reach


class SendWhileAborted(Scenario):
    """The victim sends, acknowledges and commits; either it is refused, or all of it takes effect."""

    subscriptions = ((ORDERS, BILLING),)
    rounds_max = 60
    aborting: asyncio.Task[None] | None = None

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"0", b"1")
        self.consumer, self.received = await self.receive(client, ORDERS, 2)
        self.txn = client.transaction()
        await self.txn.begin()
        self.producer = await client.producer(INVOICES)

    def begin_race(self) -> None:
        self.aborting = self.world.machines["bystander"].spawn(self.abort())

    async def abort(self) -> None:
        await self.world.loop.pause(self.rounds_max)
        try:
            await self.bystander.abort(self.txn.id)
        except InvalidTransactionState as ended:
            self.story.promise(self.txn.id, ended.actual)
        else:
            self.story.promise(self.txn.id, State.ABORTED)

    async def operate(self, client: Client) -> None:
        self.begin_race()
        try:
            for number, message in enumerate(self.received):
                await self.story.send(self.producer, b"invoice %d" % number, key=b"k", txn=self.txn)
                await self.story.ack(self.consumer, message, txn=self.txn)
            await self.story.commit(self.txn)
        except (TransactionConflict, TransactionHasFailedOperations):
            return
        except InvalidTransactionState as ended:
            self.story.promise(self.txn.id, ended.actual)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.resume(client)

    async def resume(self, client: Client) -> None:
        if self.aborting is not None:
            await asyncio.wait([self.aborting])


class CommitWhileAborted(SendWhileAborted):
    """Two processes end a transaction at the same time: both receive one outcome."""

    rounds_max = 10

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        await self.story.send(self.producer, b"invoice", key=b"k", txn=self.txn)

    async def operate(self, client: Client) -> None:
        self.begin_race()
        try:
            await self.world.loop.pause(self.rounds_max)  # or the commit, which is one call, would always be first
            await self.story.commit(self.txn)
        except InvalidTransactionState as ended:
            self.story.promise(self.txn.id, ended.actual)


class CommitAtOnceWhileAborted(CommitWhileAborted):
    """The same where the commit also moves the cursor and removes the operations."""

    reach = Reach.DATABASE


SCENARIOS = (SendWhileAborted, CommitWhileAborted, CommitAtOnceWhileAborted)
