"""Subscriptions: creation, deletion, recreation, and seeks."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from crash_scenario import BILLING, ORDERS, Scenario
from crash_story import Due

from txnframework import Client
from txnframework.errors import NotFound
from txnframework.model import TopicName

TOPIC = TopicName.parse(ORDERS)


class Subscribe(Scenario):
    """A subscription that begins at the earliest message."""

    topics: ClassVar = {ORDERS: 2}
    subscriptions = ((ORDERS, BILLING),)
    start = "earliest"

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"0", b"1")

    async def operate(self, client: Client) -> None:
        await client.topics.subscribe(TOPIC, BILLING, self.start)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.resume(client)

    async def resume(self, client: Client) -> None:
        await client.topics.subscribe(TOPIC, BILLING, self.start)
        await self.fill(ORDERS, b"2")


class SubscribeToLatest(Subscribe):
    """A subscription at latest: messages sent after its confirmation are delivered, earlier ones are not."""

    start = "latest"

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        self.story.skipped[ORDERS, BILLING] = dict.fromkeys((b"0", b"1"), Due.MUST)


class SubscribeAgain(Subscribe):
    """A subscription is created again after an earlier one had acknowledged: it starts anew."""

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        consumer, received = await self.receive(client, ORDERS, 2)
        async with consumer:
            await consumer.ack(*received)  # of a life that is over: not told to the story
        await client.topics.unsubscribe(TOPIC, BILLING)


class Unsubscribe(Subscribe):
    """A subscription is deleted with acks of an open transaction on it; then it is created again."""

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        self.txn = self.bystander.transaction()
        await self.in_bystander(self.acknowledge())

    async def acknowledge(self) -> None:
        await self.txn.begin()
        consumer, received = await self.receive(self.bystander, ORDERS, 2)
        async with consumer:
            await consumer.ack(*received, txn=self.txn)  # of a life that is over when it commits: not told to the story

    async def operate(self, client: Client) -> None:
        await client.topics.unsubscribe(TOPIC, BILLING)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.resume(client)

    async def resume(self, client: Client) -> None:
        with contextlib.suppress(NotFound):  # it was done
            await client.topics.unsubscribe(TOPIC, BILLING)
        await super().resume(client)
        await self.in_bystander(self.story.commit(self.txn))


class Seek(Scenario):
    """A subscription is moved back over acknowledged messages.

    Afterwards its position is from before or after the move.
    """

    topics: ClassVar = {ORDERS: 1}
    subscriptions = ((ORDERS, BILLING),)

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"0", b"1", b"2")
        self.consumer, self.received = await self.receive(client, ORDERS, 3)
        await self.consumer.ack(*self.received)
        self.story.skipped[ORDERS, BILLING] = dict.fromkeys((b"0", b"1", b"2"), Due.MUST)

    async def operate(self, client: Client) -> None:
        self.story.skipped[ORDERS, BILLING].update({b"1": Due.MAY, b"2": Due.MAY})
        await self.consumer.seek(self.received[1].id)
        self.story.skipped[ORDERS, BILLING].update({b"1": Due.NEVER, b"2": Due.NEVER})


SCENARIOS = (Subscribe, SubscribeToLatest, SubscribeAgain, Unsubscribe, Seek)
