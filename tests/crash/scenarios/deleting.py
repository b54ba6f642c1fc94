"""A topic that is deleted and made again under its name, with a transaction of its former life under way."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from crash_scenario import BILLING, INVOICES, Scenario, drain, read
from crash_story import values_of

from txnframework import Client
from txnframework.errors import TopicNotFound

PASSING = "topic://public/default/passing"
"""Not one of the observed topics, whose observers would get an error about the deletion."""


class DeleteAndMakeAgain(Scenario):
    """
    The bystander's transaction has sent to the topic, acknowledged on it and sent elsewhere; it commits afterwards.

    What it did elsewhere counts, and nothing of it comes into the topic's next life.
    """

    topics: ClassVar = {INVOICES: 1}
    is_made_again = False

    async def arrange(self, client: Client) -> None:
        self.txn = self.bystander.transaction()
        await self.in_bystander(self.begin())

    async def begin(self) -> None:
        await self.bystander.create_topic(PASSING)
        await self.txn.begin()
        async with await self.bystander.producer(PASSING) as producer:
            await producer.send(b"old")
            await producer.send(b"old, in the transaction", txn=self.txn)
        async with await self.bystander.producer(INVOICES) as producer:
            await self.story.send(producer, b"kept", txn=self.txn)
        consumer, received = await self.receive(self.bystander, PASSING, 1)
        async with consumer:
            await consumer.ack(*received, txn=self.txn)

    async def operate(self, client: Client) -> None:
        if self.is_made_again:
            return  # stopped before its first step: it would delete the next life
        await client.delete_topic(PASSING, force=True)
        await client.create_topic(PASSING)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.resume(client)

    async def resume(self, client: Client) -> None:
        self.is_made_again = True
        with contextlib.suppress(TopicNotFound):
            if 0 in (await client.layout(PASSING)).segments:  # of its former life
                await client.delete_topic(PASSING, force=True)
        await client.create_topic(PASSING, exist_ok=True)
        await client.subscribe(PASSING, BILLING, start="earliest")
        async with await client.producer(PASSING) as producer:
            await producer.send(b"new")
        await self.in_bystander(self.story.commit(self.txn))

    def check(self) -> None:
        bystander = self.world.machines["bystander"]
        shown = values_of(bystander.do(read(bystander.client, PASSING)))
        delivered = values_of(bystander.do(drain(bystander.client, PASSING, BILLING)))
        assert (shown, delivered) == ([b"new"], [b"new"]), f"its next life shows {shown} and delivers {delivered}"
        kept = [record.key.path for record in self.world.records("/cursor/", "/txn-aborted/", "/txn-trimmed/")]
        old = [path for path in kept if "passing" in path and "ffff-0" in path]
        assert not old, f"left of its former life: {old}"
        ledgers = self.world.space.rows.list_names("segment://public/default/passing/", "", 10)
        assert len(ledgers) == 1, f"its segments are {ledgers}"


SCENARIOS = (DeleteAndMakeAgain,)
