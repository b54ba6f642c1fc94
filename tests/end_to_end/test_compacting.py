"""Behaviour 13: compaction drops aborted messages and keeps committed ones, in commit order where asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from dying import Dies, Dying

from txnframework import Client, Compactor, DecidedMessage, LatestByKey
from txnframework.errors import (
    CommitOrderUnknown,
    CompactedInOtherOrder,
    Fenced,
    InvalidInput,
    InvalidName,
    OutcomeUnknown,
    TopicNotFound,
    Unavailable,
)
from txnframework.model import KeyRange
from txnframework.testing.clock import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import Stores


class Everything(Compactor):
    """A compaction that keeps every message."""

    name = "everything"

    def keeps(self, message: DecidedMessage) -> bool:
        return True


async def send(client: Client, *pairs: tuple[bytes, bytes | None], txn: Any = None) -> None:
    producer = await client.producer("prices")
    for key, value in pairs:
        await producer.send(value, key=key, txn=txn)


async def compacted(client: Client) -> list[bytes | None]:
    async with await client.reader("prices", compacted=True) as reader:
        return [message.value async for message in reader]


async def ledgers(client: Client) -> int:
    return len(await client.host.ledgers.list_names("compacted:", "", 100))


async def test_the_latest_of_each_key_that_counts(stores: Stores) -> None:
    """Aborted and open messages are ignored; messages after the compaction are read from the topic."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("prices")
        producer = await client.producer("prices")
        await producer.send(b"no key")
        await send(client, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"))
        async with client.transaction() as txn:
            await send(client, (b"b", b"2"), txn=txn)
        lost = client.transaction()
        await lost.begin()
        await send(client, (b"a", b"aborted"), txn=lost)
        await lost.abort()
        await send(client, (b"c", None), (b"e", b""))
        still_open = client.transaction()
        await still_open.begin()
        await send(client, (b"b", b"open"), txn=still_open)
        await send(client, (b"d", b"behind"))
        await client.compact("prices")
        assert await compacted(elsewhere) == [b"no key", b"2", b"2", b""]
        await still_open.commit()
        assert await compacted(elsewhere) == [b"no key", b"2", b"2", b"", b"open", b"behind"]
        await elsewhere.compact("prices")
        async with await client.reader("prices", compacted=True) as reader:
            messages = [message async for message in reader]
        assert [message.value for message in messages] == [b"no key", b"2", b"", b"open", b"behind"]
        async with await client.reader("prices") as reader:
            originals = {message.id: message async for message in reader}
        assert len(originals) == 10
        for message in messages:
            original = originals[message.id]
            assert (original.key, original.value, original.txn_id) == (message.key, message.value, message.txn_id)
        (internal,) = await client.host.ledgers.list_names("compacted:", "", 10)
        assert [topic.name for topic in await client.topics.list()] == ["prices"]
        for use in (client.create_topic, client.producer, client.reader):
            with pytest.raises(InvalidName):
                await use(internal)


async def test_one_message_of_a_batch(stores: Stores) -> None:
    """A kept message retains its index in the batch, its id, producer, headers and times."""
    async with stores.open(client={"linger_ms": 20}) as client:
        await client.create_topic("prices")

        class Second(Compactor):
            name = "second"

            def keeps(self, message: DecidedMessage) -> bool:
                return message.message.value == b"2"

        async with await client.producer("prices") as producer:
            sent = await producer.send_many([b"1", b"2", b"3"])
        await client.compact("prices", Second)
        async with await client.reader("prices", compacted=True) as reader:
            (message,) = [message async for message in reader]
        assert message.id == sent[1]
        async with await client.reader("prices") as reader:
            assert message in [message async for message in reader]


async def test_in_the_order_of_commits(memory: Stores) -> None:
    """Messages are ordered by commit time while outcomes are retained.

    Later, the order is refused with a clear error.
    """
    clock = memory.environment = VirtualEnvironment()
    async with memory.open(transactions={"retention_ms": 1_000, "max_clock_skew_ms": 0}) as client:
        await client.create_topic("prices")
        first, second, third = (client.transaction() for _ in range(3))
        for txn, value in ((first, b"1"), (second, b"2"), (third, b"aborted")):
            await txn.begin()
            await send(client, (b"k", value), txn=txn)
        await clock.advance(10)
        await second.commit()
        await third.abort()
        await clock.advance(10)
        await send(client, (b"k", b"plain"))
        await clock.advance(10)
        await first.commit()
        await client.compact("prices", Everything, order="commit")
        assert await compacted(client) == [b"2", b"plain", b"1"]
        await client.compact("prices", order="commit")
        assert await compacted(client) == [b"1"]
        await client.compact("prices", LatestByKey)
        assert await compacted(client) == [b"plain"], "the order of positions begins anew"
        await client.compact("prices", order="commit")
        coordinator = await client.host.coordinator()
        for txn in (first, second, third):
            await coordinator.settle(txn.id)
        await clock.advance(100_000)
        await coordinator.collect(clock.now_ms())
        with pytest.raises(CommitOrderUnknown, match="too long ago"):
            await client.compact("prices", order="commit")
        assert await compacted(client) == [b"1"]
        with pytest.raises(InvalidInput, match="'position' or 'commit'"):
            await client.compact("prices", order="time")  # type: ignore[arg-type]


@pytest.mark.families
async def test_each_order_keeps_its_own_message(stores: Stores) -> None:
    """A message that one order of compaction drops may be kept by the other, whatever was compacted before."""
    clock = stores.environment = VirtualEnvironment() if stores.url.startswith("memory:") else None
    async with stores.open() as client:
        await client.create_topic("prices")
        late, early = client.transaction(), client.transaction()
        for txn, value in ((late, b"sent first"), (early, b"committed first")):
            await txn.begin()
            await send(client, (b"k", value), txn=txn)
        await early.commit()
        if clock is None:
            await asyncio.sleep(0.01)
        else:
            await clock.advance(10)
        await late.commit()
        kept = {"position": [b"committed first"], "commit": [b"sent first"]}
        for order in ("position", "commit", "position", "position", "commit"):
            await client.compact("prices", order=order)
            assert await compacted(client) == kept[order]


async def test_an_order_that_was_trimmed_is_refused(stores: Stores) -> None:
    """If messages for the order of commits are trimmed, compaction is refused with one sentence and changes nothing."""
    async with stores.open(retention={"time_ms": 0}) as client:
        await client.create_topic("prices")
        opened = await client.host.segment(str((await client.layout("prices")).name_of(0)))
        await send(client, (b"a", b"1"), (b"a", b"2"))
        await client.compact("prices", order="commit")
        await opened.ledger.roll()
        await client.host.maintenance.round()
        await send(client, (b"a", b"3"))
        with pytest.raises(CompactedInOtherOrder, match=r"trimmed since$"):
            await client.compact("prices")
        assert await compacted(client) == [b"2", b"3"]


async def test_trimming_waits_for_compaction(stores: Stores) -> None:
    """A compacted topic is trimmed only up to its compaction, so that its readers find no gap."""
    async with stores.open(retention={"time_ms": 0}) as client:
        await client.create_topic("prices")
        opened = await client.host.segment(str((await client.layout("prices")).name_of(0)))
        await send(client, (b"a", b"1"), (b"b", b"1"))
        await client.compact("prices")
        await opened.ledger.roll()
        await send(client, (b"a", b"2"))
        await opened.ledger.roll()
        await client.host.maintenance.round()
        assert await stores.read(client, "prices") == [b"2"]
        assert await compacted(client) == [b"1", b"1", b"2"]
        await client.compact("prices")
        await client.host.maintenance.round()
        assert await stores.read(client, "prices") == []
        assert await compacted(client) == [b"1", b"2"]
        await send(client, (b"a", b"3"))
        with pytest.raises(CommitOrderUnknown, match="trimmed"):
            await client.compact("prices", order="commit")


async def test_over_splits_and_a_reader_that_follows(stores: Stores) -> None:
    """Each segment is compacted separately, parents first; then newer messages follow."""
    async with stores.open() as client:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"), (b"a", b"2"))
        await client.split("prices", 0)
        await send(client, (b"a", b"3"), (b"a", b"4"))
        await client.compact("prices")
        await send(client, (b"a", b"5"))
        async with await client.reader("prices", compacted=True, follow=True) as reader:
            found = [await anext(messages) for messages in [aiter(reader)] for _ in range(3)]
        assert [message.value for message in found] == [b"2", b"4", b"5"]
        for options in ({"start": "latest"}, {"isolation": "read_uncommitted"}):
            with pytest.raises(InvalidInput):
                await client.reader("prices", compacted=True, **options)


async def test_a_reader_of_what_was_compacted_anew_is_told(stores: Stores) -> None:
    """A reader whose snapshot was replaced gets an error instead of continuing in the new one."""
    async with stores.open() as client:
        await client.create_topic("prices")
        await send(client, *((b"%d" % number, b"1") for number in range(150)))
        await client.compact("prices")
        async with await client.reader("prices", compacted=True) as reader:
            messages = aiter(reader)
            await anext(messages)
            await client.compact("prices")
            with pytest.raises(Unavailable, match="compacted anew"):
                async for _ in messages:
                    pass
        assert len(await compacted(client)) == 150


async def test_what_was_compacted_once_never_becomes_less(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that can read less than the last compactor waits until it can read as much.

    Otherwise readers would receive the rest twice. Meanwhile, readers find the earlier snapshot.
    """
    # With room for fewer entries than there are, what came does not tell who wrote it.
    narrow: dict[str, Any] = {"buffers": {"metadata": {"ahead_entries_max": 1}}}

    async with memory.open() as client, memory.open() as slow, memory.open(**narrow) as elsewhere:
        await client.create_topic("prices")
        segment = str((await client.layout("prices")).name_of(0))
        # Where one database has records and ledgers, an intent is never late.
        monkeypatch.setattr(slow.host.metadata, "location", object())
        ledger = (await slow.host.segment(segment)).ledger
        empty = await ledger.tail()
        await send(client, (b"a", b"1"), (b"b", b"1"))
        await client.compact("prices", Everything)

        async def tail() -> Any:
            return empty

        # The intent says what its writer read before the others wrote, and is put only now.
        txn = slow.transaction()
        await txn.begin()
        with monkeypatch.context() as patched:
            patched.setattr(ledger, "tail", tail)
            await send(slow, (b"c", b"late"), txn=txn)
        assert await (await elsewhere.host.segment(segment)).buffer.max_read_position() == empty.last_confirmed
        compacting = asyncio.ensure_future(elsewhere.compact("prices", Everything))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not compacting.done()
        assert await compacted(client) == [b"1", b"1"]
        await txn.abort()
        await compacting
        for one in (client, elsewhere):
            assert await compacted(one) == [b"1", b"1"]


async def test_deleting_takes_it_along(stores: Stores) -> None:
    """Deleting a topic removes its snapshot and record; a topic of the same name continues the attempt number."""
    async with stores.open() as client:
        for _ in range(2):
            await client.create_topic("persistent://public/default/prices")
            assert await stores.read(client, "persistent://public/default/prices", compacted=True) == []
            async with await client.producer("persistent://public/default/prices") as producer:
                await producer.send(b"1")
            await client.compact("persistent://public/default/prices")
            assert await stores.read(client, "persistent://public/default/prices", compacted=True) == [b"1"]
            await client.delete_topic("persistent://public/default/prices")
            assert await ledgers(client) == 0
        await client.create_topic("prices")
        await send(client, (b"a", b"1"))
        await client.compact("prices")
        await client.delete_topic("prices")
        assert await ledgers(client) == 0
        page = await client.host.metadata.scan(KeyRange("/compacted/", "/compacted0"), 10)
        assert ["persistent" in record.key.path for record in page.records] == [True]
        with pytest.raises(TopicNotFound):
            await client.compact("prices")


@pytest.mark.parametrize("applied", [True, False])
async def test_a_crash_at_any_step(memory: Stores, applied: bool) -> None:
    """Readers find the snapshot from before or after, never a gap; the next attempt leaves one ledger."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("prices")
        await send(client, (b"a", b"0"))
        await client.compact("prices")
        compacting: Any = client.host.compaction
        died, steps = True, 0
        while died:
            await send(client, (b"a", b"%d" % (steps + 1)))
            budget = [steps]
            compacting.attempts._store = Dying(client.host.metadata, budget, applied)
            compacting._ledgers = Dying(client.host.ledgers, budget, applied)
            compacting.attempts._ledgers = compacting._ledgers
            died = False
            try:
                await client.compact("prices")
            except Dies:
                died = True
            assert (await compacted(other))[-1] == b"%d" % (steps + 1)
            await other.compact("prices")
            assert await compacted(other) == [b"%d" % (steps + 1)]
            assert await ledgers(other) == 1
            steps += 1
        assert steps > 4


async def test_the_later_of_two_compactions_counts(memory: Stores) -> None:
    """The earlier compaction is fenced, and removes nothing of the later one."""
    async with memory.open() as client, memory.open() as other:
        await client.create_topic("prices")
        await send(client, (b"a", b"1"), (b"a", b"2"))
        compacting: Any = client.host.compaction
        steps = ((compacting, "_write"), (compacting.attempts, "finish"), (compacting.attempts, "_remove"))
        for has, step in steps:
            original = getattr(has, step)

            async def late(*args: Any, original: Any = original) -> Any:
                await other.compact("prices")
                return await original(*args)

            setattr(has, step, late)
            with pytest.raises(Fenced):
                await client.compact("prices")
            setattr(has, step, original)
            assert await compacted(client) == [b"2"]
            await client.compact("prices")
            assert (await compacted(client), await ledgers(client)) == ([b"2"], 1)


async def test_lost_replies(memory: Stores) -> None:
    """Compaction repeats the step, and recognises its own earlier switch."""
    async with memory.open(client={"retry_delay_ms": 1}) as client:
        await client.create_topic("prices")
        await send(client, (b"a", b"0"), (b"b", b"0"))
        for steps in range(0, 60, 2):
            await send(client, (b"a", b"%d" % steps))
            await _compact_cut(client, steps)
            await client.compact("prices")
            assert await compacted(client) == [b"0", b"%d" % steps]
            assert await ledgers(client) == 1


async def _compact_cut(client: Client, steps: int) -> None:
    """Compact, and lose the connections after so many steps of the loop."""
    compacting = asyncio.ensure_future(client.compact("prices"))
    for _ in range(steps):
        await asyncio.sleep(0)
    backends: tuple[Any, ...] = (client.host.metadata, client.host.ledgers)
    for backend in backends:
        backend.cut()
    await asyncio.sleep(0)
    for backend in backends:
        backend.restore()
    try:
        await compacting
    except (Unavailable, OutcomeUnknown):
        return
