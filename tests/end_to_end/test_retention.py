"""What is trimmed, and what is never."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from dying import Dies, Dying

from txnframework import Client
from txnframework.broker.coordination import Holder, held_leases, holder_of
from txnframework.errors import Unavailable
from txnframework.model import Ack, KeyRange, LedgerSummary, Position, ProcessedRange, TopicName, paths, records
from txnframework.testing.clock import VirtualEnvironment, run_ready
from txnframework_memory import MemoryMetadataStore

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

AT_ONCE = {"time_ms": 0}


async def ledger_of(client: Client, topic: str, segment_id: int = 0) -> tuple[LedgerSummary, ...]:
    """Return what is left of a segment."""
    layout = await client.layout(topic)
    opened = await client.host.segment(str(layout.name_of(segment_id)))
    return await opened.ledger.ledgers(-1, 100)


async def send_rolled(client: Client, topic: str, *values: bytes) -> None:
    """Send each value into a ledger of its own."""
    layout = await client.layout(topic)
    async with await client.producer(topic) as producer:
        for value in values:
            sent = await producer.send(value)
            assert sent.segment in {str(layout.name_of(one)) for one in layout.segments}
            await (await client.host.segment(sent.segment)).ledger.roll()


def _upto(position: Position) -> Ack:
    return Ack(position, cumulative=True)


async def test_by_default_everything_stays(stores: Stores) -> None:
    """Acknowledged or not."""
    async with stores.open() as client:
        await client.create_topic("orders")
        await send_rolled(client, "orders", b"1", b"2")
        await client.host.maintenance.round()
        assert await stores.read(client, "orders") == [b"1", b"2"]


async def test_what_every_subscription_acknowledged_goes(stores: Stores) -> None:
    """Whole closed ledgers below the slowest cursor; a subscription that is given up holds nothing back."""
    async with stores.open(retention=AT_ONCE) as client:
        await client.create_topic("orders")
        slow = await client.consumer("orders", "slow", start="earliest")
        fast = await client.consumer("orders", "fast", start="earliest")
        await send_rolled(client, "orders", b"1", b"2", b"3")
        for _ in range(3):
            await fast.ack(await fast.receive())
        await slow.ack(await slow.receive())
        await client.host.maintenance.round()
        assert await stores.read(client, "orders") == [b"2", b"3"]
        assert await stores.receive(slow, 2) == [b"2", b"3"]
        await slow.close()
        await client.topics.unsubscribe(TopicName.parse("orders"), "slow")
        await client.host.maintenance.round()
        assert await stores.read(client, "orders") == []
        await send_rolled(client, "orders", b"4")
        assert await stores.receive(fast, 1) == [b"4"]
        await client.host.maintenance.round()
        assert await stores.read(client, "orders") == [b"4"]
        await fast.close()
    async with stores.open() as client:
        fast = await client.consumer("orders", "fast")
        assert await stores.receive(fast, 1) == [b"4"]
        await fast.close()


@pytest.mark.metadata_family("topics of the other family are not split")
async def test_nothing_is_left_of_a_segment_that_was_split(stores: Stores) -> None:
    """All of its ledgers are removed when every subscription has passed it; its children are unchanged."""
    async with stores.open(retention=AT_ONCE) as client:
        await client.create_topic("orders")
        billing = await client.consumer("orders", "billing", start="earliest")
        await client.subscribe("orders", "slow", start="earliest")
        async with await client.producer("orders") as producer:
            await producer.send(b"1", key=b"ada")
            await client.split("orders", 0)
            await producer.send(b"2", key=b"ada")
        await billing.ack(await billing.receive(timeout_ms=60_000))
        await billing.ack(await billing.receive(timeout_ms=60_000))
        await client.host.maintenance.round()
        assert sum(one.messages for one in await ledger_of(client, "orders")) == 1
        await client.topics.unsubscribe(TopicName.parse("orders"), "slow")
        await client.host.maintenance.round()
        assert [one.messages for one in await ledger_of(client, "orders")] == [0]
        assert await stores.read(client, "orders") == [b"2"]
        await billing.close()
    async with stores.open() as client:
        async with await client.producer("orders") as producer:
            await producer.send(b"3", key=b"ada")
        for name, start, values in (("billing", "earliest", [b"3"]), ("new", "earliest", [b"2", b"3"])):
            consumer = await client.consumer("orders", name, start=start)
            assert await stores.receive(consumer, len(values)) == values
            await consumer.close()
        assert await stores.read(client, "orders") == [b"2", b"3"]


async def test_aborted_messages_hold_nothing_back_while_a_consumer_is_busy(memory: Stores) -> None:
    """The cursor passes aborted messages as soon as all earlier ones are acknowledged, whatever is in work
    after them.
    """
    async with memory.open(retention=AT_ONCE) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await producer.send(b"1")
        lost = client.transaction()
        await lost.begin()
        await producer.send(b"lost", txn=lost)
        await lost.abort()
        await send_rolled(client, "orders", b"2", b"3")
        consumer = await client.consumer("orders", "billing", start="earliest")
        received = [await consumer.receive(timeout_ms=60_000) for _ in range(3)]
        await consumer.ack(*received[:2])
        await run_ready()
        await client.host.maintenance.round()
        assert await memory.read(client, "orders") == [b"3"]
        await consumer.close()


async def test_pending_acknowledgments_and_open_transactions_hold_back(stores: Stores) -> None:
    """Acks of an open transaction may be undone, and its messages are not readable yet, so both hold back trimming."""
    async with stores.open(retention=AT_ONCE) as client:
        await client.create_topic("orders")
        await client.create_topic("free")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await send_rolled(client, "orders", b"1")
        producer = await client.producer("free")
        txn = client.transaction()
        await txn.begin()
        await consumer.ack(await consumer.receive(), txn=txn)
        sent = await producer.send(b"open", txn=txn)
        await (await client.host.segment(sent.segment)).ledger.roll()
        await client.host.maintenance.round()
        assert await stores.read(client, "orders") == [b"1"]
        await txn.commit()
        assert await stores.read(client, "free") == [b"open"]
        await consumer.close()
    async with stores.open(retention=AT_ONCE) as client:
        await client.host.coordinator()
        await client.host.maintenance.round()
        assert await stores.read(client, "orders") == []
        assert await stores.read(client, "free") == []


async def test_the_last_batches_of_a_pipeline_stay(stores: Stores) -> None:
    """A batch that was acknowledged may be replayed, and has to read the same again."""
    async with stores.open(retention=AT_ONCE) as client:
        await client.create_topic("orders")
        consumer = await client.consumer("orders", "pipeline", start="earliest")
        await consumer.close()
        await send_rolled(client, "orders", *(b"%d" % number for number in range(5)))
        ledgers = await ledger_of(client, "orders")
        name = str((await client.layout("orders")).name_of(0))
        cursor = (await client.host.subscription(str(TopicName.parse("orders")), "pipeline", name)).cursor
        start = Position(0, -1)
        for batch, ledger in enumerate(ledgers[:-1]):
            processed = ProcessedRange("query", batch, start, ledger.last, 1)
            await cursor.apply((await cursor.load()).incarnation, (_upto(ledger.last),), processed)
            start = ledger.last
        await client.host.maintenance.round()
        assert await stores.read(client, "orders") == [b"3", b"4"]


async def test_maintenance_by_hand_leaves_the_next_turn_to_others(memory: Stores) -> None:
    """A process that trims by hand and has no rounds of its own does not block the rounds of others."""
    rule = {"time_ms": 0, "ledger_age_ms": 1, "interval_ms": 10_000_000}
    clock = memory.environment = VirtualEnvironment()
    async with (
        memory.open(retention=rule, transactions={"sweep": False}) as once,
        memory.open(retention=rule) as other,
    ):
        await other.create_topic("orders")
        await once.maintain()
        async with await other.producer("orders") as producer:
            await producer.send(b"1")
            await clock.advance(10)
            await other.maintain()
        assert await memory.read(other, "orders") == []


async def test_a_backlog_that_is_too_old_is_lost_by_an_explicit_rule_only(memory: Stores) -> None:
    """The open ledger is closed when it is old, so that its messages go too; the namespace's own rule counts."""
    clock = memory.environment = VirtualEnvironment()
    rule = {"backlog_time_ms": 1_000, "ledger_age_ms": 500, "interval_ms": 10_000_000}
    kept = {"public/default": {"retention": {"backlog_time_ms": -1}}}
    async with memory.open(retention=rule) as client, memory.open(retention=rule, namespaces=kept) as keeping:
        await client.create_topic("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await consumer.close()
        async with await client.producer("orders") as producer:
            await producer.send(b"1")
            await clock.advance(600)
            await keeping.host.maintenance.round()
            await client.host.maintenance.round()  # the other one has the lease
            assert len(await ledger_of(client, "orders")) == 1
            await keeping.host.close()
            await client.host.maintenance.round()
            await producer.send(b"2")
        assert await memory.read(client, "orders") == [b"1", b"2"]
        await client.host.maintenance.round()
        assert await memory.read(client, "orders") == [b"1", b"2"]
        await clock.advance(500)
        await client.host.maintenance.round()
        assert await memory.read(client, "orders") == [b"2"]
        consumer = await client.consumer("orders", "billing")
        assert await memory.receive(consumer, 1) == [b"2"]
        await consumer.close()


async def test_rounds_come_by_themselves(memory: Stores) -> None:
    """In the background, at the interval, a topic after the other and on from there, each segment of a split too."""
    clock = memory.environment = VirtualEnvironment()
    async with memory.open(retention=AT_ONCE | {"interval_ms": 100, "segments_max": 1}) as client:
        for topic in ("one", "two"):
            await client.create_topic(topic)
            await send_rolled(client, topic, b"old")
        await client.split("one", 0)
        await send_rolled(client, "one", b"low", b"high", b"more")
        await clock.advance(1_000)
        assert await memory.read(client, "one") == []
        assert await memory.read(client, "two") == []


async def test_who_is_not_elected_writes_nothing(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is not elected writes nothing, and takes its turn as soon as the elected one is gone."""
    writes: Counter[str] = Counter()

    def counting(name: str) -> None:
        write = getattr(MemoryMetadataStore, name)

        async def count(store: MemoryMetadataStore, *arguments: Any) -> Any:
            writes[store.session] += 1
            return await write(store, *arguments)

        monkeypatch.setattr(MemoryMetadataStore, name, count)

    for name in ("put", "delete", "apply", "acquire_lease"):
        counting(name)

    clock = memory.environment = VirtualEnvironment()
    rule = AT_ONCE | {"interval_ms": 1_000}
    async with memory.open(retention=rule) as idle:
        async with memory.open(retention=rule) as elected:
            await elected.create_topic("orders")
            await elected.host.coordinator()
            await clock.advance(1_500)
            await idle.host.coordinator()
            await clock.advance(1_500)
            writes.clear()
            for _ in range(20):
                await clock.advance(1_000)
            assert writes == {elected.host.metadata.session: 20}
            await send_rolled(elected, "orders", b"old")
        await clock.advance(1)
        assert await memory.read(idle, "orders") == []


async def test_the_process_that_trims_is_named(memory: Stores) -> None:
    """Its lease names the program, its host and its process id, and not only a session."""
    async with memory.open(retention=AT_ONCE) as client:
        await client.host.maintenance.round()
        (holder,) = map(holder_of, (await held_leases(client.host.metadata, "upkeep")).values())
        assert Holder.parse(holder).process == client.host.sessions.process


async def test_rounds_go_on_where_one_was_done_by_hand(memory: Stores) -> None:
    """A process that waits for its turn, and takes it by hand before it is woken, does not wait for itself."""
    clock = memory.environment = VirtualEnvironment()
    rule = AT_ONCE | {"interval_ms": 1_000}
    async with memory.open(retention=rule) as waiting:
        async with memory.open(retention=rule) as elected:
            await elected.create_topic("orders")
            await elected.host.coordinator()
            await clock.advance(1_500)
            await waiting.host.coordinator()
            await clock.advance(1_500)
            held: Any = elected.host.maintenance._held
            await asyncio.gather(held.release(), waiting.host.maintenance.round())
        await send_rolled(waiting, "orders", b"old")
        await clock.advance(2_000)
        assert await memory.read(waiting, "orders") == []


async def test_a_segment_that_cannot_be_trimmed_keeps_no_other_from_it(memory: Stores) -> None:
    """An error in one segment does not stop the others; the failed one is retried in a later round."""
    async with memory.open(retention=AT_ONCE) as client:
        for topic in ("one", "two"):
            await client.create_topic(topic)
            await send_rolled(client, topic, b"old")
        opened = await client.host.segment(str((await client.layout("one")).name_of(0)))
        trim = opened.buffer.trim

        async def failing(ledger_id: int) -> None:
            raise Unavailable("it is away")

        opened.buffer.trim = failing
        await client.host.maintenance.round()
        assert (await memory.read(client, "one"), await memory.read(client, "two")) == ([b"old"], [])
        opened.buffer.trim = trim
        await client.host.maintenance.round()
        assert await memory.read(client, "one") == []


@pytest.mark.metadata_family("it looks at what the family keeps")
async def test_programs_that_live_for_a_moment(stores: Stores) -> None:
    """Short-lived programs trim on request, over all topics at once, and the next ones collect the abort records."""
    sections: Any = {
        "retention": AT_ONCE | {"segments_max": 1},
        "transactions": {"abort_retention_ms": 0, "max_clock_skew_ms": 0},
    }
    topics = [f"orders-{number}" for number in range(25)]
    async with stores.open(**sections) as client:
        for topic in topics:
            await client.create_topic(topic)
        for topic in (topics[0], topics[-1]):
            lost = client.transaction()
            await lost.begin()
            sent = await (await client.producer(topic)).send(b"lost", txn=lost)
            await lost.abort()
            await (await client.host.coordinator()).settle(lost.id)
            await (await client.host.segment(sent.segment)).ledger.roll()
    for _ in range(2):
        async with stores.open(**sections) as client:
            await client.maintain()
    async with stores.open(**sections) as client:
        for topic in (topics[0], topics[-1]):
            assert [one.entries for one in await ledger_of(client, topic)] == [0]
        page = await client.host.metadata.scan(KeyRange("/txn-", "/txn."), 100)
        assert {record.key.path.split("/")[1] for record in page.records} == {"txn-trimmed"}  # permanently


async def test_several_trim_at_once(stores: Stores) -> None:
    """The lease only saves work: what two processes do at the same time is done once."""
    async with stores.open(retention=AT_ONCE) as client, stores.open(retention=AT_ONCE) as other:
        await client.create_topic("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await send_rolled(client, "orders", *(b"%d" % number for number in range(20)))
        for _ in range(15):
            await consumer.ack(await consumer.receive())
        topic = TopicName.parse("orders")
        record = await client.host.metadata.get(paths.topic_key(topic))
        assert record is not None
        document = records.decode(records.TopicRecord, record)
        await asyncio.gather(*(one.host.maintenance._maintain(topic, document) for one in (client, other, client)))
        assert await stores.read(other, "orders") == [b"%d" % number for number in range(15, 20)]
        assert await stores.receive(consumer, 5) == [b"%d" % number for number in range(15, 20)]
        await consumer.close()


async def test_a_topic_without_transactions(stores: Stores) -> None:
    """A persistent topic is trimmed like any other, also where every process comes anew."""
    topic = "persistent://public/default/orders"
    async with stores.open() as client:
        await client.create_topic(topic)
        async with await client.producer(topic) as producer:
            for number in range(50):
                await producer.send(b"%d" % number)
        await (await client.host.segment(topic)).ledger.roll()
    async with stores.open(retention=AT_ONCE) as client:
        await client.host.maintenance.round()
        assert await stores.read(client, topic) == []


@pytest.mark.parametrize("applied", [True, False])
async def test_a_process_that_dies_while_it_trims(memory: Stores, applied: bool) -> None:
    """Others go on, whatever it has done: what is acknowledged goes, what is not stays, with its abort records."""

    async def one(steps: int) -> bool:
        topic = f"orders-{steps}"
        clock = memory.environment = VirtualEnvironment()
        sections: Any = {
            "retention": AT_ONCE | {"interval_ms": 10_000_000},
            "transactions": {"abort_retention_ms": 1_000, "max_clock_skew_ms": 0, "sweep_interval_ms": 10_000_000},
        }
        async with memory.open(**sections) as client, memory.open(**sections) as other:
            await client.create_topic(topic)
            consumer = await client.consumer(topic, "billing", start="earliest")
            producer = await client.producer(topic)
            for value in (b"1", b"2"):
                lost = client.transaction()
                await lost.begin()
                sent = await producer.send(b"lost", txn=lost)
                await lost.abort()
                await (await client.host.coordinator()).settle(lost.id)
                await producer.send(value)
                await (await client.host.segment(sent.segment)).ledger.roll()
            await consumer.ack(await consumer.receive())
            await consumer.close()
            opened: Any = await client.host.segment(sent.segment)
            budget = [steps]
            opened.buffer._trimming._ledger = Dying(opened.ledger, budget, applied)
            opened.buffer._trimming._store = Dying(client.host.metadata, budget, applied)
            died = False
            for _ in range(2):
                try:
                    await client.host.maintenance.round()
                except Dies:
                    died = True
                assert await memory.read(other, topic) in ([b"1", b"2"], [b"2"])
                await clock.advance(1_000)
            store = client.host.metadata
            holder = str(Holder("", client.host.sessions.process, store.session))
            await (await store.acquire_lease("upkeep with trimming", holder)).release()
            for _ in range(3):
                await other.host.maintenance.round()
                await clock.advance(1_000)
            assert await memory.read(other, topic) == [b"2"]
            page = await other.host.metadata.scan(KeyRange("/txn-aborted/", "/txn-aborted0"), 100)
            left = [record.key.path for record in page.records]
            assert [paths.abort_record_of(path)[1] for path in left] == [sent.position.ledger_id]
            await other.delete_topic(topic, force=True)
            return died

    steps = 0
    while await one(steps):
        steps += 1
    assert steps > 2
