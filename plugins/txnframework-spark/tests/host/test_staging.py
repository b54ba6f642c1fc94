"""What one write task writes is there once and in order, however its topics change under it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from txnframework.broker import open_host
from txnframework.config import BacklogQuotaSection
from txnframework.errors import BacklogQuotaExceeded, Unavailable
from txnframework.model.names import TopicName
from txnframework_spark.errors import TopicMissing, Unsupported
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.sink.branch_writer import BranchWriter

Play = Callable[..., None]
OUT = TopicName.parse("out")


def rows(first: int, last: int, **columns: Any) -> pa.RecordBatch:
    values = [f"{number}" for number in range(first, last)]
    return pa.RecordBatch.from_pydict({"key": [f"k{number % 50}" for number in range(first, last)], "value": values})


def writer_of(world: Any, **options: str) -> BranchWriter:
    given = SinkOptions.of_stream({"topic": "out", "transactional": "false", **options})
    return BranchWriter(world.host, given, None, "p")


async def write_many(writer: BranchWriter) -> None:
    for first in range(0, 10_000, 250):
        await writer.write(rows(first, first + 250))


def in_order(values: list[str]) -> bool:
    """Whether the rows of each key stand in the order in which they were written."""
    last: dict[int, int] = {}
    for value in map(int, values):
        if last.get(value % 50, -1) > value:
            return False
        last[value % 50] = value
    return True


def test_rows_come_in_order_through_little_room(play: Play) -> None:
    """The bound of what is underway makes a writer wait, it loses nothing; and every batch has more than one entry."""

    async def scenario(world: Any) -> None:
        writer = writer_of(world, maxBytesInFlight="2000")
        for first in range(0, 3_000, 250):
            await writer.write(rows(first, first + 250))
        await writer.finish()
        found = await world.read()
        assert sorted(map(int, found)) == list(range(3_000))
        assert in_order(found)
        assert writer.rows == 3_000

    play(scenario)


def test_a_full_backlog_refuses_rows_until_it_is_read(play: Play) -> None:
    """Every attempt measures in its own process."""

    async def scenario(world: Any) -> None:
        await world.host.topics.subscribe(OUT, "slow", "earliest")
        quota = BacklogQuotaSection(messages=10)
        config = msgspec.structs.replace(world.host.config, backlog_quota=quota)
        given = SinkOptions.of_stream({"topic": "out", "transactional": "false"})

        async def attempt(first: int) -> None:
            host = await open_host(config, world.host.registry)
            world.stack.push_async_callback(host.close)
            writer = BranchWriter(host, given, None, f"p{first}")
            await writer.write(rows(first, first + 10))
            await writer.finish()

        await attempt(0)
        with pytest.raises(BacklogQuotaExceeded, match="subscription slow is 10 messages"):
            await attempt(10)
        assert len(await world.read()) == 10
        await world.host.topics.unsubscribe(OUT, "slow")
        await attempt(20)
        assert len(await world.read()) == 20

    play(scenario)


@pytest.mark.parametrize("change", ["split", "merge"])
def test_a_change_of_the_topic_between_two_of_its_segments_loses_no_row(play: Play, change: str) -> None:
    """One segment has its rows already when the other one turns out to be sealed."""

    async def scenario(world: Any) -> None:
        writer = writer_of(world)
        await writer.write(rows(0, 1_000))
        await writer.finish()
        appends = writer._appends
        put, seen = appends.put, []

        async def change_before_the_second(part: Any) -> None:
            seen.append(part.segment)
            if len(seen) == 2:
                assert await appends.drain() == []
                await (world.host.topics.merge(OUT, 0, 1) if change == "merge" else world.host.topics.split(OUT, 1))
            await put(part)

        appends.put = change_before_the_second  # type: ignore[method-assign]
        await writer.write(rows(1_000, 3_000))
        await writer.finish()
        assert len(set(seen)) > 2
        found = await world.read()
        assert sorted(map(int, found)) == list(range(3_000))
        assert in_order(found)

    play(scenario)


def test_rows_that_wait_for_a_sealed_segment_all_go_to_its_children(play: Play) -> None:
    async def scenario(world: Any) -> None:
        writer = writer_of(world)
        await writer.write(rows(0, 1_000))
        await world.host.topics.split(OUT, 0)
        await world.host.topics.split(OUT, 1)
        for first in range(1_000, 9_000, 1_000):
            await writer.write(rows(first, first + 1_000))
        await writer.finish()
        found = await world.read()
        assert sorted(map(int, found)) == list(range(9_000))
        assert in_order(found)

    play(scenario)


def test_a_topic_that_is_not_there_is_said_with_what_makes_it(play: Play) -> None:
    async def scenario(world: Any) -> None:
        writer = writer_of(world, topic="nowhere")
        with pytest.raises(TopicMissing, match="txnframework topic create topic://public/default/nowhere"):
            await writer.write(rows(0, 1_000))

    play(scenario)


def test_what_is_too_large_is_refused_before_anything_is_written(play: Play) -> None:
    async def scenario(world: Any) -> None:
        writer = writer_of(world)
        await writer.write(pa.RecordBatch.from_pydict({"value": ["small", "x" * 6_000_000]}))
        with pytest.raises(Unsupported, match="message_bytes_max"):
            await writer.finish()
        assert await world.read() == []

    play(scenario)


def test_an_append_that_fails_is_raised_by_what_waits_for_room(play: Play) -> None:
    """Entries behind the failed append are never sent, so callers that wait for their space get the error, too."""

    async def scenario(world: Any) -> None:
        writer = writer_of(world, maxBytesInFlight="2000")

        async def fail(segment: str, entries: Any) -> None:
            await asyncio.sleep(0)
            raise Unavailable("the disk is full")

        writer._appends._append = fail  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="disk is full"):
            await write_many(writer)
        with pytest.raises(Unavailable, match="disk is full"):
            await writer.finish()
        await writer.cancel()
        assert await world.read() == []

    play(scenario)
