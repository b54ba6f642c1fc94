"""Runs that begin when a topic was split: they go on with the children, where they are to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txnframework.model.names import TopicName
from txnframework_spark.source.offsets import from_json

Play = Callable[..., None]

TOPIC = TopicName.parse("in")
UNGROUPED = {"subscribe": "in", "startingOffsets": "earliest"}


async def trim_behind(world: Any, layout: Any, values: str) -> None:
    """Publish ``values``, then trim all earlier entries of the active segments."""
    opened = [await world.host.segment(str(layout.name_of(segment.id))) for segment in layout.active()]
    tails = [await one.ledger.roll() for one in opened]
    await world.publish(*values)
    for one, tail in zip(opened, tails, strict=True):
        await one.buffer.trim(tail.open_ledger_id)


def test_a_lost_checkpoint_after_a_split_goes_on_at_the_childrens_cursors(play: Play) -> None:
    """The query starts at the children's cursors, not at their beginnings, which may have been trimmed."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        first = await world.run("q1")
        offset = await first.batch(0, None)
        await world.host.topics.split(TOPIC, 0)
        layout = await world.host.topics.layout(TOPIC)
        await world.publish(*"cdefghij")
        await first.planner.watcher.refresh(TOPIC)
        await first.batch(1, offset)
        await trim_behind(world, layout, "klmnopqr")
        second = await world.run("q2")
        start = await second.planner.initial()
        end = await second.planner.latest(start)
        assert sorted(await second.read(0, start, end)) == list("klmnopqr")
        await second.commit(0, await second.stage(0, list("klmnopqr")))
        assert sorted(await world.read()) == [f"{value}!" for value in "abcdefghijklmnopqr"]

    play(scenario)


@pytest.mark.parametrize("given", [{"groupId": "g"}, {}, {"isolationLevel": "read_uncommitted"}])
def test_available_now_goes_on_with_the_children_at_once(play: Play, given: dict[str, str]) -> None:
    """A first answer that equals its start ends the query: nothing may be left to a task in the background."""

    async def scenario(world: Any) -> None:
        source = {**UNGROUPED, **given}
        await world.publish("a", "b")
        offset = await (await world.run(source=source)).batch(0, None)
        await world.host.topics.split(TOPIC, 0)
        await world.publish("c", "d", "e", "f")
        again = await world.run(source=source)
        await again.planner.fix_targets()
        before = from_json(offset)
        assert sorted(await again.read(1, before, await again.planner.latest(before))) == ["c", "d", "e", "f"]

    play(scenario)


def test_a_split_is_met_as_soon_as_the_layout_tells_it(play: Play) -> None:
    """Not when a task in the background has seen the parent's seal as well."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        run = await world.run()
        before = from_json(await run.batch(0, None))
        (follower,) = run.planner.watcher._segments.values()
        follower.task.cancel()
        await world.host.topics.split(TOPIC, 0)
        await world.publish("c", "d", "e", "f")
        await run.planner.watcher.refresh(TOPIC)
        assert sorted(await run.read(1, before, await run.planner.latest(before))) == ["c", "d", "e", "f"]

    play(scenario)


def test_the_end_of_a_segment_whose_last_transaction_is_open_is_asked_for_once(play: Play) -> None:
    """Spark asks every 10 ms; what is sealed has no other end later."""

    async def scenario(world: Any) -> None:
        await world.publish("x", topic="out")
        source = {"subscribe": "out", "startingOffsets": "earliest", "groupId": "h"}
        run = await world.run(source=source, sink={"topic": "in", "txnAppId": "other"})
        offset = from_json(await run.batch(0, None))
        writer = await world.run(source=UNGROUPED)
        values = [f"v{number}" for number in range(9)]
        staged = await writer.stage(0, values)
        out = TopicName.parse("out")
        for segment in (0, 1):
            await world.host.topics.split(out, segment)
        await run.planner.watcher.refresh(out)
        assert await run.planner.latest(offset) == offset
        asked = []
        ends_at = run.planner.watcher._ends_at

        async def counted(segment: str, at: Any) -> bool:
            asked.append(segment)
            return await ends_at(segment, at)

        run.planner.watcher._ends_at = counted
        for _ in range(5):
            assert await run.planner.latest(offset) == offset
        assert asked == []
        await writer.commit(0, staged)
        again = await world.run(source=source, sink={"topic": "in", "txnAppId": "other"})
        found, batch = [], 0
        while len(found) < len(values):
            # A segment may be read further some steps of the loop later than another one: then in another batch.
            batch += 1
            before, offset = await again.plan(offset.to_json())
            found += await again.read(batch, before, offset)
        assert sorted(found) == [f"{value}!" for value in values]

    play(scenario)


def test_latest_is_behind_what_the_children_hold_as_well(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        await world.host.topics.split(TOPIC, 0)
        await world.publish("c", "d", "e", "f")
        run = await world.run(source={**UNGROUPED, "startingOffsets": "latest"})
        start = await run.planner.initial()
        assert await run.planner.latest(start) == start
        await world.publish("g")
        start, end = await run.plan(start.to_json())
        assert await run.read(0, start, end) == ["g"]

    play(scenario)


def test_what_came_after_latest_is_read_also_when_a_split_came_first(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        run = await world.run(source={**UNGROUPED, "startingOffsets": "latest"})
        start = await run.planner.initial()
        await world.host.topics.split(TOPIC, 0)
        await world.publish("c", "d", "e", "f")
        await run.planner.watcher.refresh(TOPIC)
        assert sorted(await run.read(0, start, await run.planner.latest(start))) == ["c", "d", "e", "f"]

    play(scenario)


def test_a_first_batch_that_meets_a_split_is_replayed_with_the_same_range(play: Play) -> None:
    """Where it began on the children stands in its end, as they are not in the initial offset."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        await (await world.run("q1")).batch(0, None)
        run = await world.run("q2")
        start = await run.planner.initial()
        await world.host.topics.split(TOPIC, 0)
        await world.publish("c", "d", "e", "f")
        await run.planner.watcher.refresh(TOPIC)
        end = await run.planner.latest(start)
        assert sorted(await run.read(0, start, end)) == ["c", "d", "e", "f"]
        await run.commit(0, await run.stage(0, ["c", "d", "e", "f"]))
        again = await world.run("q2")
        asked_anew = await again.planner.initial()
        assert sorted(await again.read(0, asked_anew, from_json(end.to_json()))) == ["c", "d", "e", "f"]
        await again.commit(0, await again.stage(0, ["c", "d", "e", "f"]))
        assert sorted(await world.read()) == [f"{value}!" for value in "abcdef"]

    play(scenario)


def test_an_empty_segment_that_was_closed_and_split_is_passed(play: Play) -> None:
    """With a limit per batch as without: where nothing waits, the end is reached, and the children begin."""

    async def scenario(world: Any) -> None:
        run = await world.run()
        offset = (await run.planner.initial()).to_json()
        layout = await world.host.topics.layout(TOPIC)
        await (await world.host.segment(str(layout.name_of(0)))).ledger.roll()
        await world.host.topics.split(TOPIC, 0)
        await world.publish("a")
        await run.planner.watcher.refresh(TOPIC)
        for batch in range(2):
            offset = await run.batch(batch, offset, 5)
        assert await world.read() == ["a!"]

    play(scenario)
