"""Compacting: what is kept is written beside a segment, and one record says what readers find."""

from __future__ import annotations

from contextlib import aclosing

from crash_scenario import ORDERS, Scenario

from txnframework import Client, Compactor, DecidedMessage, Message
from txnframework.broker import EVERYTHING, CompactionResult, copies

PRICES = "topic://public/default/prices"
SEGMENT = "segment://public/default/orders/0000-ffff-0"


class Everything(Compactor):
    """Keeps all messages, so that the story knows the expected ones."""

    name = EVERYTHING

    def keeps(self, message: DecidedMessage) -> bool:
        return True


class Compact(Scenario):
    """A segment that was compacted before is compacted again, with what was committed and aborted since."""

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, b"1")
        await self.in_bystander(self.bystander.compact(ORDERS, Everything))
        await self.in_bystander(self.fill_more())

    async def fill_more(self) -> None:
        async with await self.bystander.producer(ORDERS) as producer:
            for value in (b"2", b"3"):
                txn = self.bystander.transaction()
                await txn.begin()
                await self.story.send(producer, value, key=b"k", txn=txn)
                await (self.story.commit(txn) if value == b"2" else self.story.abort(txn))
            await self.story.send(producer, b"4", key=b"k")

    async def operate(self, client: Client) -> None:
        await client.compact(ORDERS, Everything)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.compact_again(client)

    async def resume(self, client: Client) -> None:
        await self.compact_again(client)

    async def compact_again(self, client: Client) -> None:
        """The next compaction leaves one generation of ledgers."""
        self.story.check_topic(ORDERS, await self.compacted(client), "a reader of what was compacted")
        await client.compact(ORDERS, Everything)

    async def compacted(self, client: Client) -> list[Message]:
        async with await client.reader(ORDERS, compacted=True) as reader:
            return [message async for message in reader]

    def check(self) -> None:
        bystander = self.world.machines["bystander"]
        self.story.check_topic(ORDERS, bystander.do(self.compacted(bystander.client)), "a late reader of it")
        left = self.world.space.rows.list_names("compacted:", "", 100)
        kept = bystander.do(bystander.client.host.compaction.attempts.result(SEGMENT))
        assert kept is not None
        assert left == kept.ledgers, f"ledgers {left} are left"


class CompactInParts(Compact):
    """The same, copied as by several processes: each range to a ledger of its own, and one of them twice."""

    async def operate(self, client: Client) -> None:
        compacting = client.host.compaction
        attempt = await compacting.attempts.begin(SEGMENT)
        plan = await compacting.plan(SEGMENT, attempt.earlier, "position", 1)
        names = []
        for number, planned in enumerate((plan.ranges[0], *plan.ranges)):
            async with compacting.attempts.open_writer(attempt, f"{number:04}") as writer:
                async with aclosing(copies(client.host.ledgers, planned, plan.aborted, None)) as found:
                    async for one in found:
                        await writer.add(one.data, one.messages)
                await writer.seal()
            names.append(writer.name)
        await compacting.attempts.finish(attempt, CompactionResult(tuple(names[1:]), plan.upto, EVERYTHING, plan.order))


class CompactNulls(Scenario):
    """A key that is deleted behind a split: its message and the null go from two segments, and neither comes back."""

    async def arrange(self, client: Client) -> None:
        await self.in_bystander(self.make())

    async def make(self) -> None:
        await self.bystander.create_topic(PRICES)
        async with await self.bystander.producer(PRICES) as producer:
            await producer.send(b"1", key=b"deleted")
            await producer.send(b"2", key=b"kept")
        await self.bystander.split(PRICES, 0)
        async with await self.bystander.producer(PRICES) as producer:
            await producer.send(None, key=b"deleted")

    async def operate(self, client: Client) -> None:
        await client.compact(PRICES)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.compact_again(client)

    async def resume(self, client: Client) -> None:
        await self.compact_again(client)

    async def compact_again(self, client: Client) -> None:
        """Until then, a reader finds the null behind the message that it deletes, or neither."""
        last = dict(await self.compacted(client))
        assert (last.get(b"deleted"), last.get(b"kept")) == (None, b"2"), f"a reader finds {last}"
        await client.compact(PRICES)

    async def compacted(self, client: Client) -> list[tuple[bytes | None, bytes | None]]:
        async with await client.reader(PRICES, compacted=True) as reader:
            return [(message.key, message.value) async for message in reader]

    def check(self) -> None:
        bystander = self.world.machines["bystander"]
        found = bystander.do(self.compacted(bystander.client))
        assert found == [(b"kept", b"2")], f"a late reader finds {found}"


SCENARIOS = (Compact, CompactInParts, CompactNulls)
