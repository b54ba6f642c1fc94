"""Which topics and segments a stream reads, from where, how much at a time, and what it says of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from txnframework.errors import TopicNotFound
from txnframework.model.names import TopicName
from txnframework_spark.errors import InvalidOption, TopicLost
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.admission import NO_LIMIT, BatchLimit
from txnframework_spark.source.offsets import from_json
from txnframework_spark.source.planner import InputPlanner

Play = Callable[..., None]

PATTERN = {"subscribePattern": "in.*", "patternRefreshMs": "0", "startingOffsets": "earliest"}


async def all_values(run: Any, batch: int, start: dict[str, Any] | None) -> tuple[list[str], dict[str, Any]]:
    """Run the read tasks of the next batch; return what they read, and its end."""
    before, after = await run.plan(start)
    return await run.read(batch, before, after), after.to_json()


@pytest.mark.parametrize("group", [{}, {"groupId": "g"}])
def test_topics_that_match_a_pattern_join_a_running_query_from_their_beginning(
    play: Play, group: dict[str, str]
) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        run = await world.run(source={**PATTERN, **group})
        first = await run.batch(0, None)
        await world.host.topics.create(TopicName.parse("in-more"), 2)
        await world.host.topics.create(TopicName.parse("other"), 1)
        await world.publish("b", "c", topic="in-more")
        await world.publish("x", topic="other")
        second = await run.batch(1, first)
        await world.publish("d")
        await run.batch(2, second)
        assert sorted(await world.read()) == ["a!", "b!", "c!", "d!"]

    play(scenario)


def test_a_topic_that_appeared_while_the_query_was_away_is_read_from_its_beginning(play: Play) -> None:
    """Also with ``latest``, which was when the query began; replayed, the batch has the same range."""

    async def scenario(world: Any) -> None:
        source = {**PATTERN, "groupId": "g", "startingOffsets": "latest"}
        run = await world.run(source=source)
        await run.plan(None)
        await world.publish("a")
        first = await run.batch(0, (await run.planner.initial()).to_json())
        await world.host.topics.create(TopicName.parse("in-more"), 1)
        await world.publish("b", topic="in-more")
        again = await world.run(source=source)
        start, end = await again.plan(first)
        await again.replay(1, start, end)
        assert sorted(await world.read()) == ["a!", "b!"]
        once_more = await world.run(source=source)
        await once_more.replay(1, start, end)
        assert sorted(await world.read()) == ["a!", "b!"]

    play(scenario)


def test_a_new_query_that_stops_at_what_is_there_begins_at_the_end_too(play: Play) -> None:
    """Its targets are fixed before Spark tells whether it is new; only then are subscriptions made."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        options = SourceOptions.parse({**PATTERN, "groupId": "g", "startingOffsets": "latest"})
        planner = InputPlanner.of(world.host, options, "spark source")
        await planner.fix_targets()
        await planner.take(begins=True)
        start = await planner.initial()
        assert await planner.latest(start) is start
        assert await planner.partitions(start, start) == []
        await planner.close()

    play(scenario)


def test_a_deleted_topic_stops_the_query_unless_lost_data_may_be_passed_over(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.host.topics.create(TopicName.parse("in-more"), 1)
        await world.publish("a")
        await world.publish("b", topic="in-more")
        strict, lenient = (
            await world.run(source=PATTERN),
            await world.run(source={**PATTERN, "failOnDataLoss": "false"}),
        )
        values, end = await all_values(strict, 0, None)
        assert sorted(values) == ["a", "b"]
        _, lenient_end = await all_values(lenient, 0, None)
        await world.host.topics.delete(TopicName.parse("in-more"), force=True)
        await world.publish("c")
        with pytest.raises(TopicLost, match=r"in-more was deleted before.*failOnDataLoss=false"):
            await strict.plan(end)
        assert (await all_values(lenient, 1, lenient_end))[0] == ["c"]
        # One of that name is another topic.
        await world.host.topics.create(TopicName.parse("in-more"), 1)
        await world.publish("d", topic="in-more")
        with pytest.raises(TopicLost, match="created again"):
            await (await world.run(source=PATTERN)).plan(end)
        assert sorted((await all_values(lenient, 1, lenient_end))[0]) == ["c", "d"]

    play(scenario)


def test_a_topic_that_is_not_there_is_said_to_be_missing(play: Play) -> None:
    async def scenario(world: Any) -> None:
        run = await world.run(source={"subscribe": "in,nowhere", "failOnDataLoss": "false"})
        with pytest.raises(TopicNotFound, match="nowhere does not exist"):
            await run.plan(None)

    play(scenario)


def test_only_assigned_segments_are_read(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish(*"abcdefgh")
        every = {"startingOffsets": "earliest"}
        halves = [
            (await all_values(await world.run(source={"assign": json.dumps({"in": [one]}), **every}), 0, None))[0]
            for one in (0, 1)
        ]
        assert all(halves)
        assert sorted(halves[0] + halves[1]) == list("abcdefgh")
        run = await world.run(source={"assign": json.dumps({"in": [0, 7]}), **every})
        with pytest.raises(InvalidOption, match="has no segment 7; it has 0, 1"):
            await run.plan(None)

    play(scenario, segments=2)


def test_a_query_begins_at_the_places_that_are_named(play: Play) -> None:
    """The message there is the first one; a child of a segment that is named is read as a whole."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b", "c")
        segment = await world.host.segment("segment://public/default/in/0000-ffff-0")
        ledger = (await segment.ledger.tail()).open_ledger_id
        start = json.dumps({"in": {"0": {"ledger": ledger, "entry": 1}}})
        run = await world.run(source={"subscribe": "in", "startingOffsets": start})
        values, end = await all_values(run, 0, None)
        assert values == ["b", "c"]
        await world.host.topics.split(TopicName.parse("in"), 0)
        await world.publish("d", "e")
        assert sorted((await all_values(run, 1, end))[0]) == ["d", "e"]
        below = {"in": {"1": "latest", "2": "earliest"}}
        run = await world.run(source={"subscribe": "in", "startingOffsets": json.dumps(below)})
        values, _ = await all_values(run, 0, None)
        assert set(values) < {"d", "e"}
        for number, place in (("5", "latest"), ("0", {"ledger": ledger, "entry": 9})):
            wrong = await world.run(source={"subscribe": "in", "startingOffsets": json.dumps({"in": {number: place}})})
            with pytest.raises(InvalidOption, match=r"no segment 5|no entry \d+:9 yet"):
                await wrong.plan(None)

    play(scenario)


def test_a_query_begins_at_a_time(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        early = await world.run(source={"subscribe": "in", "startingTimestamp": "1"})
        assert (await all_values(early, 0, None))[0] == ["a"]
        later = await world.run(source={"subscribe": "in", "startingTimestamp": str(1 << 50)})
        assert (await all_values(later, 0, None))[0] == []

    play(scenario)


def test_a_batch_waits_until_enough_has_come_but_not_for_ever(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        run = await world.run(source={"subscribe": "in", "startingOffsets": "earliest", "minOffsetsPerTrigger": "3"})
        start = await run.planner.initial()
        assert await run.planner.latest(start, NO_LIMIT, 3) is start
        assert await run.planner.latest(start, NO_LIMIT, 3) is start
        assert await run.planner.latest(start) is not start
        await world.publish("c")
        await run.plan(None)
        end = await run.planner.latest(start, NO_LIMIT, 3)
        assert len(await run.read(0, start, end)) == 3
        impatient = {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "1ms"}
        run = await world.run(source={"subscribe": "in", "startingOffsets": "earliest", **impatient})
        start = await run.planner.initial()
        while (end := await run.planner.latest(start, NO_LIMIT, 9)) is start:
            pass
        assert len(await run.read(0, start, end)) == 3

    play(scenario)


@pytest.mark.parametrize("aligned", ["true", "false"])
def test_a_batch_has_about_as_many_bytes_as_it_may(play: Play, aligned: str) -> None:
    """The messages of one topic are ten times as large; a batch has at least one message, however large it is."""

    async def scenario(world: Any) -> None:
        await world.host.topics.create(TopicName.parse("large"), 1)
        for number in range(20):
            await world.publish(f"{number:04}")
            await world.publish(f"{number:02000}", topic="large")
        sizes = [await size_of(world, topic) for topic in ("in", "large")]
        options = {"subscribe": "in,large", "startingOffsets": "earliest", "alignSegments": aligned}
        run = await world.run(source=options)
        start, _ = await run.plan(None)
        for bytes_max, rows in ((sum(sizes) // 2, 20), (sum(sizes) // 4, 10), (sum(sizes), 40), (1, 1)):
            end = await run.planner.latest(start, BatchLimit(bytes=bytes_max))
            assert 0.7 * rows <= len(await run.read(0, start, end)) <= rows
        end = await run.planner.latest(start, BatchLimit(4, sum(sizes) // 2))
        assert len(await run.read(0, start, end)) == 4
        # The rest of the small topic, whose messages were stored in the same ledger.
        end = start
        while (after := await run.planner.latest(end, BatchLimit(bytes=sum(sizes) // 8))) is not end:
            assert 1 <= len(await run.read(0, end, after)) <= 5
            end = after

    async def size_of(world: Any, topic: str) -> int:
        ledger = (await world.host.segment(f"segment://public/default/{topic}/0000-ffff-0")).ledger
        return sum(one.bytes for one in await ledger.ledgers(-1, 10))

    play(scenario)


def test_a_range_is_cut_into_tasks_at_entries_and_all_register_the_same_reading(play: Play) -> None:
    async def scenario(world: Any) -> None:
        values = [str(number) for number in range(12)]
        await world.publish(*values)
        options = {"subscribe": "in", "groupId": "g", "startingOffsets": "earliest", "minPartitions": "4"}
        run = await world.run(source=options)
        start, end = await run.plan(None)
        tasks = await run.planner.partitions(start, end)
        assert len(tasks) >= 4
        assert len({task.registration for task in tasks}) == 1
        assert Counter(await run.read(0, start, end)) == Counter(values)
        group_by_segment: dict[str, list[Any]] = {}
        for task in tasks:
            group_by_segment.setdefault(task.segment, []).append(task)
        for mine in group_by_segment.values():
            assert [one.upto for one in mine[:-1]] == [one.after for one in mine[1:]]

    play(scenario, segments=2)


def test_the_progress_tells_the_lag_in_messages(play: Play) -> None:
    """Parents that the query has finished do not count, and children that it has not begun do."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b", "c")
        run = await world.run(source={"subscribe": "in", "startingOffsets": "earliest"})
        start, end = await run.plan(None, 2)
        lag = (await run.planner.report())["lag"]
        assert lag == {"messages": 1, "topics": {"topic://public/default/in": 1}}
        await world.host.topics.split(TopicName.parse("in"), 0)
        await world.publish("d", "e")
        for _ in range(20):
            start, end = await run.plan(end.to_json())
        assert start.to_json() == end.to_json()
        reported = await run.planner.report()
        assert reported["lag"]["messages"] == 0
        assert from_json({"format": 1, "topics": reported["topics"]}).frontier.keys() == end.frontier.keys()

    play(scenario)


@pytest.mark.parametrize("group", [{}, {"groupId": "g"}])
@pytest.mark.parametrize("left", [{"subscribe": "in"}, {"subscribePattern": "i.", "patternRefreshMs": "0"}])
def test_a_topic_that_is_not_to_be_read_any_more_and_is_in_the_checkpoint(
    play: Play, group: dict[str, str], left: dict[str, str]
) -> None:
    """Its subscription was not taken over, so whatever is read of it would never be acknowledged: it is refused, be it
    that the next batch is planned or that the last one comes again.
    """

    async def scenario(world: Any) -> None:
        await world.host.topics.create(TopicName.parse("more"), 1)
        await world.publish("a")
        await world.publish("b", topic="more")
        run = await world.run(source={"subscribe": "in,more", "startingOffsets": "earliest", **group})
        start, end = await run.plan(None)
        await run.replay(0, start, end)
        await world.publish("c", topic="more")
        run = await world.run(source={**left, "startingOffsets": "earliest", **group})
        for asked in (run.planner.latest(end), run.planner.partitions(start, end)):
            with pytest.raises(
                InvalidOption, match=r"the checkpoint contains an offset in topic://public/default/more"
            ):
                await asked

    play(scenario)
