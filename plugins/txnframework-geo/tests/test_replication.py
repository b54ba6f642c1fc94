"""What a replication copies: committed transactions, whole, each message once, in the order of its key."""

from __future__ import annotations

import asyncio

import pytest
from geo_world import World, run, torn

from txnframework.broker import OpenSegment
from txnframework.interfaces import IJointCoordinator
from txnframework.model.key_hashes import key_hash
from txnframework.model.layout import Layout
from txnframework.model.positions import Position
from txnframework_geo import ID_HEADER, PATH_HEADER, Replication, Replicator, Stage, Step, _source, is_replicated
from txnframework_geo._segments import SourceTopics
from txnframework_geo._source import Source

DOMAINS = pytest.mark.parametrize("domain", ["topic", "persistent"])


@DOMAINS
async def test_committed_messages_with_all_that_belongs_to_them(domain: str) -> None:
    world = World(domain)

    async with world.source.open() as source:
        await world.create(source)
        left = world.topics[0]
        async with await source.producer(left, name="till") as producer:
            await producer.send(b"one", key=b"ada", headers={"txnframework-schema": b"order:1"}, sequence_id=7)
            await producer.send(None, key=b"ada")
            await producer.send(b"")
        await world.send(source, commit=False)
        await world.send(source)
        original = await world.source.read(str(left))
    assert await world.copy() == 7
    await world.assert_same()
    copied = await world.target.read(str(left))
    assert {one.value for one in copied} == {b"one", None, b"", b"2.0", b"2.1"}
    found = next(one for one in copied if one.value == b"one")
    assert (found.key, found.schema_id) == (b"ada", "order:1")
    assert is_replicated(found.headers)
    assert found.headers[ID_HEADER].decode() == str(original[0].id)
    assert found.headers["txnframework-geo-producer"] == b"till"
    assert found.headers["txnframework-geo-sequence"] == b"7"
    assert found.headers["txnframework-geo-published-ms"] == str(original[0].published_ms).encode()
    assert await world.copy() == 0


@DOMAINS
async def test_no_reader_sees_a_part_of_a_transaction(domain: str) -> None:
    """Writers, aborts, splits and a reader of the target are at work while it is replicated in small parts."""
    world = World(domain)

    async with world.source.open() as source, world.target.open() as target:
        await world.create(source)
        replicating = asyncio.ensure_future(world.replicator(source, target, messages_min=5).run())

        async def write(number: int) -> None:
            for each in range(8):
                await world.send(source, key=b"%d" % (number % 3), commit=each != 3)

        async def split() -> None:
            for topic in world.topics:
                if domain == "topic":
                    await source.split(topic, 0)

        writing = asyncio.gather(*[write(one) for one in range(4)], split())
        while not writing.done():
            for topic in world.topics:
                await target.create_topic(topic, exist_ok=True)
            assert not await torn(target, world.topics)
            await asyncio.sleep(0)
        await writing
        assert not await torn(source, world.topics)
        replicating.cancel()
        await asyncio.wait({replicating})
    await world.copy(messages_min=5)
    await world.assert_same()


async def test_a_transaction_that_is_held_back_holds_back_only_its_keys() -> None:
    """Other messages are copied; those with the same key wait, so that the key keeps its order."""
    world = World()

    left, right = world.topics
    async with world.source.open() as source:
        await world.create(source, segments=1)
        async with await source.producer(left) as to_left, await source.producer(right) as to_right:
            blocking = source.transaction()
            await blocking.begin()
            await to_right.send(b"blocking", txn=blocking)
            async with source.transaction() as both:
                await to_left.send(b"1", key=b"a", txn=both)
                await to_right.send(b"1", txn=both)
            await to_left.send(b"2", key=b"b")
            await to_left.send(b"3", key=b"a")
            assert await world.copy() == 1
            assert [one.value for one in await world.target.read(str(left))] == [b"2"]
            # The source keeps what waits, and so what was sent after it.
            (subscription,) = (await source.layout(left)).subscriptions
            assert (await source.lag(left, subscription)).messages == 3
            await blocking.commit()
    assert await world.copy() == 4
    assert [one.value for one in await world.target.read(str(left))] == [b"2", b"1", b"3"]
    assert [one.value for one in await world.target.read(str(right))] == [b"blocking", b"1"]


async def test_transactions_in_one_step() -> None:
    """They have no records of their operations: their entries name them, and each one is copied whole."""
    world = World()

    left, right = world.topics
    async with world.source.open() as source:
        await world.create(source)
        assert IJointCoordinator(await source.host.coordinator()).has_one_database
        async with await source.producer(left) as to_left, await source.producer(right) as to_right:
            blocking = source.transaction()
            await blocking.begin()
            await to_right.send(b"blocking", key=b"key", txn=blocking)
            for number in range(3):
                value = b"%d" % number
                await source.transact(to_left.outgoing(value, key=b"key"), to_right.outgoing(value, key=b"key"))
            assert await world.copy() == 0  # the right part of each is behind the open transaction
            await blocking.commit()
    assert await world.copy() == 7
    await world.assert_same()


async def test_too_many_messages_behind_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their positions are a part of the progress, so they wait unread, and all others with them."""
    monkeypatch.setattr(_source, "LATE_MAX", 3)
    world = World()

    left, right = world.topics
    async with world.source.open() as source:
        await world.create(source, segments=1)
        async with await source.producer(left) as to_left, await source.producer(right) as to_right:
            blocking = source.transaction()
            await blocking.begin()
            await to_right.send(b"blocking", txn=blocking)
            await world.send(source)
            await to_left.send(b"alone")
            assert await world.copy() == 1  # two messages wait
            await world.send(source)
            await to_left.send(b"another")
            assert await world.copy() == 0  # four would wait
            await blocking.commit()
    assert await world.copy() == 10
    await world.assert_same()


async def test_segments_that_are_split_and_merged_meanwhile() -> None:
    """Each key keeps its order, although the target has other segments."""
    world = World()

    async with world.source.open() as source:
        await world.create(source, segments=1)
        async with world.target.open() as target:
            await target.create_topic(world.topics[0], segments=3)
        for number in range(2):
            await world.send(source, key=b"ada")
            await world.send(source, key=b"bob")
            if number == 0:
                await world.copy()
            low, high = await source.split(world.topics[0], 3 * number)
            await world.send(source, key=b"ada")
            await source.merge(world.topics[0], low, high)
            await world.send(source, key=b"bob")
    await world.copy()
    await world.assert_same()


async def test_a_later_transaction_is_not_copied_before_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both begin and end while the ends of the segments are read, one after the other."""
    world = World()
    readings = sent = 0

    left, right = world.topics
    async with world.source.open() as source:
        await world.create(source, segments=1)
        async with await source.producer(left) as producer:
            await producer.send(b"before")

        async def send_both() -> None:
            async with await source.producer(left) as to_left, await source.producer(right) as to_right:
                async with source.transaction() as first:
                    await to_left.send(b"first", txn=first)
                    await to_right.send(b"first", txn=first)
                async with source.transaction() as second:
                    await to_right.send(b"second", txn=second)

        readable, open_segment = Source.readable, SourceTopics.open

        async def counted(self: Source) -> dict[str, Position]:
            nonlocal readings
            found = await readable(self)
            readings += 1
            return found

        async def sending(self: SourceTopics, layout: Layout, name: str) -> OpenSegment:
            nonlocal sent
            # The end of the other segment has been read.
            if readings == 2 and layout.topic == right and not sent:
                sent += 1
                await send_both()
            return await open_segment(self, layout, name)

        monkeypatch.setattr(Source, "readable", counted)
        monkeypatch.setattr(SourceTopics, "open", sending)
        await world.copy()
    assert sent == 1
    assert await world.target.read(str(right)) == []
    await world.copy()
    assert [one.value for one in await world.target.read(str(right))] == [b"first", b"second"]


async def test_a_child_waits_for_its_parent() -> None:
    """A transaction is open on the parent; what was sent to the child with the same key comes after it."""
    world = World()

    left, _ = world.topics
    async with world.source.open() as source:
        await world.create(source, segments=1)
        async with await source.producer(left) as producer:
            opened = source.transaction()
            await opened.begin()
            await producer.send(b"1", key=b"a", txn=opened)
            await source.split(left, 0)
            await producer.send(b"2", key=b"a")
            await producer.send(b"3")
            assert await world.copy() == 0
            await opened.commit()
    assert await world.copy() == 3
    await world.assert_same()


def test_a_large_backlog_in_parts() -> None:
    world = World()
    steps: list[Step] = []

    async def work() -> None:
        pages = {"read_entries_max": 3}
        async with world.source.open(subscriptions=pages) as source, world.target.open() as target:
            await world.create(source)
            await world.send(source, times=30)
            replication = Replication(world.topics, messages_min=10, messages_max=20)
            await Replicator(source, target, replication).run(once=True, on_step=steps.append)
        await world.assert_same()

    run(work())
    assert len(steps) >= 3
    assert [one.number for one in steps] == list(range(1, len(steps) + 1))
    assert steps[0].lag_messages > 0
    assert (steps[-1].lag_messages, steps[-1].lag_ms) == (0, 0)


async def test_two_deployments_that_replicate_to_each_other() -> None:
    """Each message is in both once."""
    world, back = World(), World()
    back.source, back.target = world.target, world.source

    async with world.source.open() as source, world.target.open() as target:
        await world.create(source)
        await world.create(target)
        await world.send(source)
        back.sent = 100
        await back.send(target)
    assert await world.copy() == 4
    assert await back.copy() == 4
    assert await world.copy() == 0
    assert await back.copy() == 0
    for topic in world.topics:
        for stores in (world.source, world.target):
            values = sorted(one.value or b"" for one in await stores.read(str(topic)))
            assert values == [b"1.0", b"1.1", b"101.0", b"101.1"]


async def test_on_to_a_third_deployment_and_never_back() -> None:
    first, second = World(), World()
    second.source = first.target
    third = World()
    third.source, third.target = second.target, first.source

    async with first.source.open() as source:
        await first.create(source)
        await first.send(source)
    assert await first.copy() == 4
    assert await second.copy() == 0
    assert await second.copy(name="forwarding", forward=True) == 4
    assert await third.copy(forward=True) == 0
    (one, _) = await second.target.read("left")
    assert one.headers[PATH_HEADER].count(b",") == 1


async def test_trimming_waits_for_the_target() -> None:
    world = World()

    async with world.source.open() as source, world.target.open() as target:
        await world.create(source)
        await world.send(source)
        stop = asyncio.Event()

        async def before_copying(stage: Stage) -> None:
            if stage is Stage.READ:
                stop.set()
                await asyncio.Event().wait()

        replicating = asyncio.ensure_future(world.replicator(source, target, reached=before_copying).run())
        await stop.wait()
        (subscription,) = {name for topic in world.topics for name in (await source.layout(topic)).subscriptions}
        for topic in world.topics:
            assert (await source.lag(topic, subscription)).messages == 2
        replicating.cancel()
        await asyncio.wait({replicating})
        await world.copy()
        for topic in world.topics:
            assert (await source.lag(topic, subscription)).messages == 0
            for segment in (await source.layout(topic)).in_order():
                opened = await source.host.segment(str((await source.layout(topic)).name_of(segment.id)))
                await opened.ledger.roll()
        await source.maintain()
        await world.send(source)
        assert await world.copy() == 4


async def test_where_consumers_start_after_a_failover() -> None:
    """Behind the time of the first message that was not acknowledged, the target has all that were not."""
    world = World()

    left, _ = world.topics
    async with world.source.open() as source, world.target.open() as target:
        await world.create(source)
        await source.subscribe(left, "billing", start="earliest")
        for number in range(10):
            await world.send(source, key=b"%d" % number)
            await world.copy()
            for stores in (world.source, world.target):
                await stores.advance(1_000)
        waiting: set[str] = set()
        done: set[str] = set()
        async with await source.consumer(left, "billing", type="shared") as consumer:
            while len(waiting) + len(done) < 20:
                message = await consumer.receive()
                # The first ones are done, and of the others every third one.
                number = int((message.value or b"").split(b".")[0])
                (done if number <= 4 or number % 3 == 0 else waiting).add(str(message.id))
                if str(message.id) in done:
                    await consumer.ack(message)
        oldest_ms = min(one.published_ms for one in await source.peek(left, "billing", 100))

        await target.subscribe(left, "billing", start="earliest")
        await target.seek(left, "billing", oldest_ms)
        origins: set[str] = set()
        async with await target.consumer(left, "billing") as consumer:
            while not waiting <= origins:
                origins.add((await consumer.receive()).headers[ID_HEADER].decode())
        assert origins - done == waiting
        lag = await target.lag(left, "billing")
        assert lag.messages < len(done) + len(waiting)


async def test_the_lag_is_that_of_the_oldest_message() -> None:
    """It may be in any segment, also behind a first segment whose messages are newer."""
    world = World()
    keys = sorted((b"%d" % number for number in range(9)), key=key_hash)

    await world.begin()
    async with world.source.open() as source, world.target.open() as target:
        replicator = world.replicator(source, target)
        assert await replicator.lag() == (0, 0)
        await world.send(source, key=keys[-1])
        await world.source.advance(5_000)
        await world.send(source, key=keys[0])
        messages, age_ms = await replicator.lag()
        assert messages == 8
        assert age_ms >= 5_000
