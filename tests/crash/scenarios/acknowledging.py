"""Acknowledging: outside transactions and in one, one by one and cumulatively."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar

from crash_scenario import BILLING, ORDERS, Scenario

from txnframework import Client
from txnframework.errors import InvalidTransactionState


class AcknowledgePlain(Scenario):
    """Acknowledgments outside transactions, one of a part of a batch."""

    topics: ClassVar = {ORDERS: 1}
    subscriptions = ((ORDERS, BILLING),)
    messages = 4

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"0", b"1", b"2", b"3")
        self.consumer, self.received = await self.receive(client, ORDERS, self.messages)

    async def operate(self, client: Client) -> None:
        await self.story.ack(self.consumer, self.received[1])
        await self.story.ack(self.consumer, self.received[0], self.received[3])


class AcknowledgeCumulatively(AcknowledgePlain):
    """A cumulative acknowledgment outside transactions."""

    async def operate(self, client: Client) -> None:
        await self.story.ack_cumulative(self.consumer, self.received[:3])


class Acknowledge(AcknowledgePlain):
    """Acknowledgments in a transaction: singly, of several at once, and the same again."""

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        self.txn = client.transaction()
        await self.txn.begin()

    async def operate(self, client: Client) -> None:
        await self.story.ack(self.consumer, self.received[1], txn=self.txn)
        await self.story.ack(self.consumer, self.received[0], self.received[3], txn=self.txn)
        await self.story.ack(self.consumer, self.received[1], txn=self.txn)

    async def carry_on(self, client: Client, failed: bool) -> None:
        if failed:
            await self.story.abort(self.txn)
        else:
            await self.story.commit(self.txn)


class AcknowledgeCumulativelyInTransaction(Acknowledge):
    """A cumulative acknowledgment in a transaction."""

    async def operate(self, client: Client) -> None:
        await self.story.ack_cumulative(self.consumer, self.received[:2], self.txn)
        await self.story.ack_cumulative(self.consumer, self.received[:3], self.txn)


class AcknowledgeOneByOne(Acknowledge):
    """Acknowledgments of one transaction, one call after the other and several at once, and its commit."""

    messages = 6

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"4", b"5")
        await super().arrange(client)

    async def operate(self, client: Client) -> None:
        for message in self.received[:3]:
            await self.story.ack(self.consumer, message, txn=self.txn)
        acks = (self.story.ack(self.consumer, message, txn=self.txn) for message in self.received[3:])
        for failed in await asyncio.gather(*acks, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed
        await self.story.commit(self.txn)

    async def carry_on(self, client: Client, failed: bool) -> None:
        if failed:
            with contextlib.suppress(InvalidTransactionState):  # it is committed
                await client.abort(self.txn.id)


SCENARIOS = (
    AcknowledgePlain,
    AcknowledgeCumulatively,
    Acknowledge,
    AcknowledgeCumulativelyInTransaction,
    AcknowledgeOneByOne,
)
