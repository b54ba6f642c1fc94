"""Sending: outside transactions, in one, and under a branch of a transaction that another process ends."""

from __future__ import annotations

from typing import ClassVar

from crash_scenario import INVOICES, ORDERS, Scenario, patiently

from txnframework import Client, Producer, Transaction


class PublishPlain(Scenario):
    """Two sends outside transactions; the next client repeats them under the same name and sequence ids."""

    async def operate(self, client: Client) -> None:
        async with await client.producer(ORDERS, name="till") as producer:
            for number in range(2):
                await self.story.send(producer, b"%d" % number, key=b"k", sequence_id=number)

    async def carry_on(self, client: Client, failed: bool) -> None:
        if failed:
            await self.operate(client)

    async def resume(self, client: Client) -> None:
        await self.operate(client)


class Publish(Scenario):
    """
    Sends to two topics in one transaction.

    After a crash another process sends the same again in a transaction of its own: what was aborted is replaced.
    """

    topics: ClassVar = {ORDERS: 1, INVOICES: 2}

    async def arrange(self, client: Client) -> None:
        self.txn = client.transaction()
        await self.txn.begin()
        self.producers = [await client.producer(topic, name="till") for topic in self.topics]

    async def operate(self, client: Client) -> None:
        await self.send_all(self.producers, self.txn)

    async def send_all(self, producers: list[Producer], txn: Transaction) -> None:
        for producer in producers:
            for number in range(2):
                value = b"%s %d" % (producer.topic.encode(), number)
                await self.story.send(producer, value, key=b"%d" % number, sequence_id=number, txn=txn)

    async def carry_on(self, client: Client, failed: bool) -> None:
        if failed:
            await self.story.abort(self.txn)
            await self.resume(client)
        else:
            await self.story.commit(self.txn)

    async def resume(self, client: Client) -> None:
        await patiently(client, lambda: self.send_again(client))

    async def send_again(self, client: Client) -> None:
        again = client.transaction()
        await again.begin()
        try:
            await self.send_all([await client.producer(topic, name="till") for topic in self.topics], again)
        except BaseException:
            await self.story.abort(again)
            raise
        await self.story.commit(again)


class JoinedBranch(Scenario):
    """The victim writes and acknowledges under a branch of the bystander's transaction.

    The victim's work takes effect if its branch was reported; the bystander's own sends always do.
    """

    subscriptions = ((ORDERS, "billing"),)

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"order 0", b"order 1")
        self.consumer, self.received = await self.receive(client, ORDERS, 2)
        self.owned = self.bystander.transaction()
        await self.in_bystander(self.owned.begin())
        self.producer = await client.producer(INVOICES)
        self.reported: tuple[int, ...] = ()

    async def operate(self, client: Client) -> None:
        async with client.join(self.owned.id) as part:
            await self.story.send(self.producer, b"invoice", key=b"k", txn=part)
            await self.story.ack(self.consumer, self.received[0], txn=part)
        self.reported = (part.branch,)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.finish()

    async def resume(self, client: Client) -> None:
        await self.finish()

    async def finish(self) -> None:
        async def finish() -> None:
            async with await self.bystander.producer(INVOICES) as producer:
                await self.story.send(producer, b"own invoice", key=b"own", txn=self.owned)
            await self.story.commit(self.owned, self.reported)

        await self.in_bystander(finish())


SCENARIOS = (PublishPlain, Publish, JoinedBranch)
