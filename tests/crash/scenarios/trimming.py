"""Trimming: ledgers that everybody has acknowledged go, and later what was kept of transactions in them."""

from __future__ import annotations

from typing import ClassVar

from crash_scenario import BILLING, ORDERS, Scenario

from txnframework import Client, Producer

SEGMENT = "segment://public/default/orders/0000-ffff-0"
ABORT_RETENTION_MS = 1_000
NOTICED_MS = 5_000
"""By then, the lease of a killed process has ended."""
OWN_ROUNDS_MS = 10**9
"""No process trims by itself."""


class Trim(Scenario):
    """Two closed ledgers go, the first with an aborted message; a third one is not acknowledged and stays.

    Afterwards, the messages of the first two are sent again with their old sequence ids: committed ones are confirmed
    and not stored again, aborted ones are stored.
    """

    topics: ClassVar = {ORDERS: 1}
    subscriptions = ((ORDERS, BILLING),)
    retention: ClassVar = {"time_ms": 0, "interval_ms": OWN_ROUNDS_MS}
    transactions: ClassVar = {"abort_retention_ms": ABORT_RETENTION_MS}

    async def arrange(self, client: Client) -> None:
        self.story.trimmed[ORDERS] = frozenset((b"1", b"2"))
        self.producer = await self.bystander.producer(ORDERS, name="till")
        await self.in_bystander(self.fill_ledgers())
        consumer, received = await self.receive(client, ORDERS, 2)
        async with consumer:
            await self.story.ack(consumer, *received)
            await self.pass_time(client, NOTICED_MS)  # the bystander acknowledges meanwhile, and the abort takes effect
        await self.in_bystander(self.fill_more())

    async def fill_ledgers(self) -> None:
        await self.story.send(self.producer, b"1", sequence_id=0)
        txn = self.bystander.transaction()
        await txn.begin()
        await self.story.send(self.producer, b"aborted", sequence_id=1, txn=txn)
        await self.story.abort(txn)
        await self.roll()
        await self.story.send(self.producer, b"2", sequence_id=2)
        await self.roll()

    async def fill_more(self) -> None:
        await self.story.send(self.producer, b"3", sequence_id=3)
        await self.roll()
        await self.story.send(self.producer, b"4", sequence_id=4)
        await self.producer.close()

    async def roll(self) -> None:
        await (await self.bystander.host.segment(SEGMENT)).ledger.roll()

    async def operate(self, client: Client) -> None:
        await self.trim(client)

    async def trim(self, client: Client) -> None:
        """Trim, and collect the abort records when their time has come."""
        for _ in range(2):
            await client.host.maintenance.round()
            await self.pass_time(client, 2 * ABORT_RETENTION_MS)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.finish(client, client)

    async def resume(self, client: Client) -> None:
        await self.pass_time(client, NOTICED_MS)
        await self.in_bystander(self.finish(self.bystander, client))

    async def finish(self, trims: Client, sends: Client) -> None:
        """Trim what is left, and send again."""
        await self.trim(trims)
        async with await sends.producer(ORDERS, name="till") as producer:
            await self.repeat(producer)

    async def repeat(self, producer: Producer) -> None:
        for sequence_id, value in enumerate((b"1", b"aborted", b"2")):
            await self.story.send(producer, value, sequence_id=sequence_id)

    def check(self) -> None:
        ledgers = self.world.machines["bystander"].do(self.ledgers_left())
        assert ledgers == [3, 4], f"ledgers {ledgers} are left"
        records = self.world.records("/txn-aborted/")
        assert not records, f"kept of what was trimmed: {[record.key.path for record in records]}"

    async def ledgers_left(self) -> list[int]:
        opened = await self.bystander.host.segment(SEGMENT)
        return [one.ledger_id for one in await opened.ledger.ledgers(-1, 100)]

    async def pass_time(self, client: Client, ms: int) -> None:
        environment = client.host.environment
        await environment.sleep_until(environment.now_ms() + ms)


SCENARIOS = (Trim,)
