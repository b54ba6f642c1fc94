"""Topics that migrated from the log-driven family are read like others: no marker, nothing aborted, nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

import txnframework
import txnframework_dispatchers.plugin
import txnframework_legacy.plugin
import txnframework_memory.plugin
import txnframework_metadata.plugin
from txnframework.broker import copies
from txnframework.model.compacted import decode_compacted
from txnframework.model.names import TopicName
from txnframework.model.positions import EntryRange, Limit
from txnframework.plugin import load_plugins
from txnframework_spark.errors import TopicLost, Unsupported
from txnframework_spark.jobs.audit.audit import require_provable
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.reader import page_batches
from txnframework_spark.source.snapshot import plan_snapshot

Play = Callable[..., None]
OLD, NEW = "persistent://public/default/moved", "topic://public/default/moved"
PLUGINS = (
    txnframework_memory.plugin,
    txnframework_metadata.plugin,
    txnframework_legacy.plugin,
    txnframework_dispatchers.plugin,
)
PLACES = pa.schema([("value", pa.binary()), ("topic", pa.string()), ("segment", pa.int64())])


@asynccontextmanager
async def client_of(world: Any) -> AsyncIterator[txnframework.Client]:
    """Open a client that serves both families; the hosts of Spark's processes have no plugin of the log family."""
    log = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}
    config = {**world.config, "domains": {"persistent": log}}
    async with txnframework.open(config, registry=load_plugins(PLUGINS)) as client:
        yield client


async def fill(client: txnframework.Client, *values: str) -> None:
    """Send one message outside of a transaction and more in transactions: aborted, committed, and open ones."""
    producer = await client.producer(OLD)
    await producer.send(f"{values[0]}".encode())
    aborted, committed, left = (client.transaction(domain="persistent") for _ in range(3))
    for txn, value in ((aborted, "aborted"), (committed, values[1]), (left, "left open")):
        await txn.begin()
        await producer.send(value.encode(), txn=txn)
    await aborted.abort()
    await committed.commit()
    await producer.send(values[2].encode())


async def migrate(client: txnframework.Client) -> None:
    await client.topics.migrations.migrate(TopicName.parse(OLD), TopicName.parse(NEW), 0, lambda *_: None)


async def snapshot(world: Any, **options: str) -> list[tuple[str, str, int]]:
    """Return what a batch reads: value, topic and segment id of each message."""
    parsed = SourceOptions.parse({"startingOffsets": "earliest", **options}).for_batch()
    found: list[tuple[str, str, int]] = []
    for partition in await plan_snapshot(world.host, parsed):
        ledger = await world.host.ledgers.open(partition.segment)
        page = await ledger.read(EntryRange(partition.after, partition.upto), Limit(1_000))
        for rows in page_batches(page, partition, PLACES):
            found += [(row["value"].decode(), row["topic"], row["segment"]) for row in rows.to_pylist()]
        await ledger.close()
    return found


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_batches(play: Play, isolation: str) -> None:
    """All columns are those of the new topic; a reader of uncommitted messages gets no marker either."""

    async def scenario(world: Any) -> None:
        async with client_of(world) as client:
            await client.create_topic(OLD)
            await fill(client, "1", "2", "3")
            await migrate(client)
            await world.publish("4", topic="moved")
        more = ("aborted", "2", "left open") if isolation == "read_uncommitted" else ("2",)
        old = [(value, NEW, 0) for value in ("1", *more, "3")]
        every = {"subscribe": "moved", "isolationLevel": isolation}
        assert await snapshot(world, **every) == [*old, ("4", NEW, 1)]
        assert await snapshot(world, assign='{"moved": [0]}', isolationLevel=isolation) == old

    play(scenario)


def test_streams(play: Play) -> None:
    """A subscription from before goes on at its cursor; a stream restarts, and replays, inside of the old segment."""

    async def scenario(world: Any) -> None:
        async with client_of(world) as client:
            await client.create_topic(OLD)
            await client.subscribe(OLD, "g", start="earliest")
            await fill(client, "1", "2", "3")
            consumer = await client.consumer(OLD, "g")
            async with client.transaction(domain="persistent") as txn:
                await consumer.ack(await consumer.receive(), txn=txn)
            await consumer.close()
            await migrate(client)
        await world.publish("4", topic="moved")
        moved = {"subscribe": "moved", "groupId": "g", "startingOffsets": "earliest"}
        first = await world.run("q", source=moved)
        start, end = await first.plan(None, 1)
        assert set(end.frontier[NEW]) == {OLD}
        await first.replay(0, start, end)
        assert await world.read() == ["2!"]
        # A run that repeats the last batch of its checkpoint, and goes on from there.
        second = await world.run("q", source=moved)
        await second.replay(0, *(await second.plan(None, 1))[:1], end)
        offset = end.to_json()
        for number in range(1, 4):
            offset = await second.batch(number, offset, 1)
        assert sorted(await world.read()) == ["2!", "3!", "4!"]
        assert OLD not in offset["topics"][NEW], "the old segment was finished, and the offset names its child only"
        assert await world.cursor("g", "moved") == str(
            (await (await world.host.segment(OLD)).ledger.tail()).last_confirmed
        )

    play(scenario)


@pytest.mark.parametrize("group", [{}, {"groupId": "g"}])
def test_a_topic_that_joins(play: Play, group: dict[str, str]) -> None:
    """A stream of a pattern reads the topic from its beginning when it appears, without a restart and after one."""

    async def scenario(world: Any) -> None:
        pattern = {"subscribePattern": "in|moved", "patternRefreshMs": "0", "startingOffsets": "earliest", **group}
        run = await world.run("q", source=pattern)
        async with client_of(world) as client:
            await client.create_topic(OLD)
            await fill(client, "1", "2", "3")
            await world.publish("0")
            start, before = await run.plan(None)
            assert await run.read(0, start, before) == ["0"]
            await run.commit(0, await run.stage(0, ["0"]))
            await migrate(client)
            await world.publish("4", topic="moved")
            assert await run.read(1, *await run.plan(before.to_json())) == ["1", "2", "3"]
            one = await world.run("q", source=pattern)
            start, end = await one.plan(before.to_json())
            assert await one.read(1, start, end) == ["1", "2", "3"]
            await one.commit(1, await one.stage(1, ["1", "2", "3"]))
            start, end = await one.plan(end.to_json())
            assert await one.read(2, start, end) == ["4"]
            await client.delete_topic(NEW, force=True)
            with pytest.raises(TopicLost):
                await one.plan(end.to_json())

    play(scenario)


def test_another_life(play: Play) -> None:
    """A topic that was deleted, and migrated under the same names again, is another one for a checkpoint."""

    async def scenario(world: Any) -> None:
        source = {"subscribe": "moved", "startingOffsets": "earliest"}
        async with client_of(world) as client:
            for life in range(2):
                await client.create_topic(OLD)
                await fill(client, "1", "2", "3")
                await migrate(client)
                run = await world.run("q", source=source)
                if life == 0:
                    start, end = await run.plan(None, 1)
                    assert await run.read(0, start, end) == ["1"]
                    await client.delete_topic(NEW, force=True)
                    continue
                start, end = await run.plan(None)
                assert await run.read(0, start, end) == ["1", "2", "3"]

    play(scenario)


def test_jobs(play: Play) -> None:
    """The copies of a compaction leave markers out, and an audit refuses a flow over the topic."""

    async def scenario(world: Any) -> None:
        async with client_of(world) as client:
            await client.create_topic(OLD)
            await fill(client, "1", "2", "3")
            await migrate(client)
        plan = await world.host.compaction.plan(OLD, None, "position", 100)
        found = []
        for planned in plan.ranges:
            async for copy in copies(world.host.ledgers, planned, plan.aborted, None):
                kept = decode_compacted(copy.data, copy.position, OLD)
                found += [message.value for _, message in kept.messages]
        assert found == [b"1", b"2", b"3"]
        with pytest.raises(Unsupported, match=f"{NEW} was {OLD} before it migrated"):
            require_provable(await world.host.topics.layout(TopicName.parse(NEW)))
        own = await world.host.topics.layout(TopicName.parse("in"))
        assert require_provable(own) == own

    play(scenario)
