"""Changes of a topic's layout: split and merge, with and without messages under way."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from crash_scenario import BILLING, ORDERS, Scenario

from txnframework import Client
from txnframework.errors import LayoutConflict
from txnframework.model import TopicName


class Split(Scenario):
    """A split of a segment with messages and a subscription; the next client finishes it and sends more."""

    topics: ClassVar = {ORDERS: 1}
    subscriptions = ((ORDERS, BILLING),)
    keys = (b"key 3", b"key 4", b"key 5")
    """Of both halves of the hash range, as the traffic's keys are."""

    async def arrange(self, client: Client) -> None:
        await self.in_bystander(self.bystander.topics.subscribe(TopicName.parse(ORDERS), BILLING, "earliest"))
        self.producer = await self.bystander.producer(ORDERS)
        await self.in_bystander(self.send_all(b"before"))

    async def operate(self, client: Client) -> None:
        await self.change(client)

    async def change(self, client: Client) -> None:
        await client.split(ORDERS, 0)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.finish(client)

    async def resume(self, client: Client) -> None:
        await self.finish(client)

    async def finish(self, client: Client) -> None:
        await client.topics.finish_changes(TopicName.parse(ORDERS))
        with contextlib.suppress(LayoutConflict):  # it was done
            await self.change(client)
        await self.in_bystander(self.send_all(b"after"))

    async def send_all(self, when: bytes) -> None:
        for key in self.keys:
            await self.story.send(self.producer, b"%s %s" % (when, key), key=key)

    def check(self) -> None:
        layout = self.world.machines["bystander"].do(self.bystander.layout(ORDERS))
        assert len(layout.active()) == 2 - self.topics[ORDERS] + 1, layout


class Merge(Split):
    """A merge of two segments."""

    topics: ClassVar = {ORDERS: 2}

    async def change(self, client: Client) -> None:
        await client.merge(ORDERS, 0, 1)


class SplitUnderTraffic(Split):
    """A split while the bystander sends, in a transaction and outside of it: it follows to the children."""

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        self.txn = self.bystander.transaction()
        await self.in_bystander(self.txn.begin())
        self.traffic = self.world.machines["bystander"].spawn(self.send_meanwhile())

    async def send_meanwhile(self) -> None:
        for round_ in range(3):
            for key in self.keys:
                await self.story.send(self.producer, b"meanwhile %d %s" % (round_, key), key=key)
                await self.story.send(
                    self.producer, b"in transaction %d %s" % (round_, key), key=b"t" + key, txn=self.txn
                )
        await self.story.commit(self.txn)

    async def finish(self, client: Client) -> None:
        await super().finish(client)
        await self.traffic


class SplitInTransaction(Split):
    """The victim sends in a transaction, changes the layout under itself, sends on, acknowledges and commits."""

    composed = True
    own_keys: ClassVar = (b"own",)

    async def arrange(self, client: Client) -> None:
        await super().arrange(client)
        self.consumer, self.received = await self.receive(client, ORDERS, len(self.keys))
        self.own = await client.producer(ORDERS)

    async def operate(self, client: Client) -> None:
        async with client.transaction() as txn:
            for when in (b"early", b"late"):
                for key in self.own_keys:
                    await self.story.send(self.own, b"%s %s" % (when, key), key=key, txn=txn)
                if when == b"early":
                    await self.change(client)
            of_each = {message.id.segment: message for message in self.received}
            await self.story.ack(self.consumer, *of_each.values(), txn=txn)


class MergeUnderTraffic(Merge, SplitUnderTraffic):
    """A merge while the bystander sends to both parents."""


class MergeInTransaction(Merge, SplitInTransaction):
    """The victim merges two segments that it has sent to; what it acknowledges is of both."""

    own_keys: ClassVar = (b"own key 0", b"own key 1")


SCENARIOS = (Split, Merge, SplitUnderTraffic, SplitInTransaction, MergeUnderTraffic, MergeInTransaction)
