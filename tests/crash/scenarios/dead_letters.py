"""Messages that were delivered too often and become dead letters."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from crash_scenario import BILLING, ORDERS, PATIENCE_MS, Scenario, patiently, read
from crash_story import Due, values_of

from txnframework import Client, Consumer, DeadLetter
from txnframework.errors import ReceiveTimeout

LETTERS = f"{ORDERS}-{BILLING}-DLQ"
QUIET_MS = 5_000


class PutAside(Scenario):
    """A message is moved to a dead-letter topic, which is created for it; the next consumer completes the move."""

    topics: ClassVar = {ORDERS: 1}
    subscriptions = ((ORDERS, BILLING),)

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"bad")
        self.story.skipped[ORDERS, BILLING][b"bad"] = Due.MUST
        self.consumer = await self.join(client)
        self.message = await self.consumer.receive(timeout_ms=PATIENCE_MS)
        self.is_there = asyncio.Event()
        self.world.machines["bystander"].spawn(self.await_letter())

    async def join(self, client: Client) -> Consumer:
        rule = DeadLetter(redeliveries_max=0)
        return await client.consumer(ORDERS, BILLING, start="earliest", dead_letter=rule)

    async def await_letter(self) -> None:
        async with await patiently(self.bystander, lambda: self.bystander.reader(LETTERS, follow=True)) as letters:
            await anext(aiter(letters))
        self.is_there.set()

    async def operate(self, client: Client) -> None:
        await self.consumer.nack(self.message)
        await self.move(self.consumer)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.consumer.close()
        if failed:
            await self.resume(client)

    async def resume(self, client: Client) -> None:
        async with await patiently(client, lambda: self.join(client)) as consumer:
            await self.move(consumer)

    async def move(self, consumer: Consumer) -> None:
        """Receive, and refuse what comes, until the letter is there."""
        while not self.is_there.is_set():
            try:
                await consumer.nack(await consumer.receive(timeout_ms=QUIET_MS))
            except ReceiveTimeout:
                continue

    def check(self) -> None:
        bystander = self.world.machines["bystander"]
        letters = values_of(bystander.do(read(bystander.client, LETTERS)))
        assert letters == [b"bad"], f"the dead-letter topic holds {letters}"


SCENARIOS = (PutAside,)
