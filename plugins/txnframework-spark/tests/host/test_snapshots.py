"""What a batch reads: everything up to its planning, between the places that are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from txnframework.errors import TopicNotFound
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.ledger import Append
from txnframework.model.names import TopicName
from txnframework.model.positions import EntryRange, Limit
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.reader import page_batches
from txnframework_spark.source.snapshot import plan_snapshot

Play = Callable[..., None]
SCHEMA = pa.schema([("value", pa.binary())])


async def plan(world: Any, **given: Any) -> list[Any]:
    texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in given.items()}
    chosen = {} if {"subscribePattern", "assign"} & texts.keys() else {"subscribe": "in"}
    options = SourceOptions.parse({**chosen, **texts}).for_batch()
    return await plan_snapshot(world.host, options)


async def read(world: Any, tasks: list[Any]) -> list[str]:
    found: list[str] = []
    for task in tasks:
        ledger = await world.host.ledgers.open(task.segment)
        page = await ledger.read(EntryRange(task.after, task.upto), Limit(1_000))
        await ledger.close()
        for batch in page_batches(page, task, SCHEMA):
            found += [row["value"].decode() for row in batch.to_pylist()]
    return found


async def values(world: Any, **given: Any) -> list[str]:
    return await read(world, await plan(world, **given))


async def publish_entry(world: Any, *texts: str) -> int:
    """Append one entry of several messages; return the ledger's id."""
    segment = await world.host.segment("segment://public/default/in/0000-ffff-0")
    messages = [EntryMessage(None, text.encode(), (), index, 0) for index, text in enumerate(texts)]
    appended = await segment.buffer.append((Append(encode_entry(messages, "test", None), len(messages)),))
    ledger: int = appended[0].position.ledger_id
    return ledger


def test_a_batch_ends_where_it_was_planned_and_joins_what_was_split(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        await world.host.topics.split(TopicName.parse("in"), 0)
        await world.publish("c", "d")
        tasks = await plan(world)
        await world.publish("e")
        assert sorted(await read(world, tasks)) == ["a", "b", "c", "d"]
        below = await values(world, startingOffsets={"in": {"1": "earliest", "2": "earliest"}})
        assert sorted(below) == ["c", "d", "e"]
        assert await values(world, assign={"in": [0]}) == ["a", "b"]

    play(scenario)


def test_what_an_open_transaction_wrote_is_not_read_nor_what_stands_behind_it(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        run = await world.run(sink={"topic": "in", "txnAppId": "app"}, source={"subscribe": "out"})
        staged = await run.stage(0, ["x"])
        await world.publish("b")
        assert await values(world) == ["a"]
        assert sorted(await values(world, isolationLevel="read_uncommitted")) == ["a", "b", "x!"]
        await run.commit(0, staged)
        assert sorted(await values(world)) == ["a", "b", "x!"]

    play(scenario)


def test_places_name_the_first_message_and_the_first_that_is_not_read(play: Play) -> None:
    async def scenario(world: Any) -> None:
        ledger = await publish_entry(world, "a", "b", "c")
        await publish_entry(world, "d", "e", "f")

        def at(entry: int, index: int = 0) -> dict[str, Any]:
            return {"in": {"0": {"ledger": ledger, "entry": entry, "index": index}}}

        assert await values(world, startingOffsets=at(0, 2)) == ["c", "d", "e", "f"]
        assert await values(world, startingOffsets=at(1)) == ["d", "e", "f"]
        assert await values(world, endingOffsets=at(1)) == ["a", "b", "c"]
        assert await values(world, startingOffsets=at(0, 1), endingOffsets=at(1, 1)) == ["b", "c", "d"]
        assert await values(world, startingOffsets=at(0, 1), endingOffsets=at(0, 2)) == ["b"]
        assert await values(world, startingOffsets=at(0, 1), endingOffsets=at(2)) == ["b", "c", "d", "e", "f"]
        assert await values(world, startingOffsets={"in": {"0": "latest"}}) == []
        with pytest.raises(InvalidOption, match="is after its end"):
            await values(world, startingOffsets=at(1, 1), endingOffsets=at(1))
        with pytest.raises(InvalidOption, match="can be read up to"):
            await values(world, endingOffsets=at(2, 1))
        with pytest.raises(InvalidOption, match="has no entry"):
            await values(world, startingOffsets=at(3))
        with pytest.raises(InvalidOption, match="has no segment 4"):
            await values(world, endingOffsets={"in": {"4": "latest"}})

    play(scenario)


def test_a_batch_reads_between_two_times(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        late = str(1 << 50)
        assert await values(world, startingTimestamp="1", endingTimestamp=late) == ["a"]
        assert await values(world, startingTimestamp=late) == []
        assert await values(world, endingTimestamp="1") == []

    play(scenario)


def test_all_topics_of_a_pattern_are_read_and_a_missing_topic_is_named(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        await world.publish("b", topic="out")
        assert sorted(await values(world, subscribePattern="in|out")) == ["a", "b"]
        assert await values(world, subscribePattern="nothing") == []
        with pytest.raises(TopicNotFound, match="nowhere does not exist"):
            await plan_snapshot(world.host, SourceOptions.parse({"subscribe": "nowhere"}).for_batch())

    play(scenario)
