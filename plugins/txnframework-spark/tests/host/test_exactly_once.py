"""Whatever happens to runs and checkpoints, each message is processed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txnframework.broker import dispatching_lease
from txnframework.errors import Fenced, SubscriptionOwnedElsewhere
from txnframework.model.names import TopicName
from txnframework_spark.errors import BatchNotCommitted, DataLost, Diverged, NotJudgeable, Unsupported
from txnframework_spark.sink import commit
from txnframework_spark.sink.commit import Staged, abort_staged

Play = Callable[..., None]


def test_a_batch_is_committed_with_its_acknowledgment(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        run = await world.run()
        start, end = await run.plan(None)
        values = await run.read(0, start, end)
        staged = await run.stage(0, values)
        assert await world.read() == []
        await run.commit(0, staged)
        assert sorted(await world.read()) == ["a!", "b!"]
        assert (await world.cursor()).endswith(":1")
        assert (await run.plan(end.to_json()))[1] == end

    play(scenario)


def test_tasks_without_rows_have_no_part_in_the_transaction(play: Play) -> None:
    """Only the first task begins it without rows: so a batch without rows is acknowledged, too."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        run = await world.run()
        start, end = await run.plan(None, 1)
        staged = await run.stage(0, await run.read(0, start, end))
        empty = Staged(None, 0, 0, run.facts(0), staged.application)
        await run.commit(0, empty, staged, empty)
        assert await world.read() == ["a!"]
        start, end = await run.plan(end.to_json(), 1)
        await run.read(1, start, end)
        empty = Staged(None, 0, 0, run.facts(1), staged.application)
        await run.commit(1, await run.stage(1, []), empty)
        assert (await world.cursor()).endswith(":1")
        start, end = await run.plan(end.to_json())
        assert start == end
        with pytest.raises(BatchNotCommitted):
            await run.commit(1, empty)

    play(scenario)


def test_a_killed_batch_is_run_again_with_the_same_range(play: Play) -> None:
    """Killed before the decision: nothing counts, and nothing is lost."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        first = await world.run()
        start, end = await first.plan(None)
        await first.stage(0, await first.read(0, start, end))
        await world.publish("c")
        second = await world.run()
        await second.replay(0, *((await second.plan(None))[0], end))
        assert sorted(await world.read()) == ["a!", "b!"]
        await second.batch(1, end.to_json())
        assert sorted(await world.read()) == ["a!", "b!", "c!"]

    play(scenario)


def test_a_committed_batch_that_spark_forgot_is_a_replay(play: Play) -> None:
    """Killed between the decision and Spark's own record, before the acknowledgments reached the cursor."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        first = await world.run()
        start, end = await first.plan(None)
        staged = await first.stage(0, await first.read(0, start, end))
        await decide_without_settling(first, 0, staged)
        second = await world.run()
        again = (await second.plan(None))[0]
        assert again.frontier == end.frontier
        assert await second.read(0, again, end) == ["a", "b"]
        await second.commit(0, await second.stage(0, ["a", "b"]))
        assert sorted(await world.read()) == ["a!", "b!"]

    play(scenario)


async def decide_without_settling(run: Any, batch: int, staged: Any) -> None:
    coordinator = await commit.application_coordinator(run.host)
    settle = type(coordinator).settle

    async def nothing(self: Any, txn_id: Any) -> None:
        return None

    type(coordinator).settle = nothing
    try:
        await run.commit(batch, staged)
    finally:
        type(coordinator).settle = settle


def test_a_lost_checkpoint_goes_on_at_the_cursor(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        await (await world.run("q1")).batch(0, None)
        await world.publish("c")
        again = await world.run("q2")
        start, end = await again.plan(None)
        assert await again.read(0, start, end) == ["c"]
        await again.commit(0, await again.stage(0, ["c"]))
        assert sorted(await world.read()) == ["a!", "b!", "c!"]

    play(scenario)


def test_an_older_checkpoint_repeats_nothing_and_loses_nothing(play: Play) -> None:
    """What it reads again is read up to the cursor, dropped, and only then are new messages taken."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b", "c", "d")
        first = await world.run()
        offsets = [await first.batch(0, None, 1)]
        for number in (1, 2):
            offsets.append(await first.batch(number, offsets[-1], 1))
        await world.publish("e")
        second = await world.run()
        start, end = await second.plan(offsets[0])
        assert await second.read(1, start, end) == ["b", "c"]
        await second.commit(1, await second.stage(1, ["b", "c"]))
        await second.batch(2, end.to_json())
        assert sorted(await world.read()) == ["a!", "b!", "c!", "d!", "e!"]

    play(scenario)


def test_a_paused_run_cannot_commit_after_it_was_taken_over(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        old = await world.run("q1")
        start, end = await old.plan(None)
        staged = await old.stage(0, await old.read(0, start, end))
        new = await world.run("q2")
        with pytest.raises(Fenced):
            await old.commit(0, staged)
        await new.batch(0, None)
        with pytest.raises((Fenced, BatchNotCommitted)):
            await old.commit(0, staged)
        assert await world.read() == ["a!"]

    play(scenario)


def test_a_paused_read_task_cannot_register_after_a_take_over(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        old = await world.run()
        start, end = await old.plan(None)
        await world.run()
        with pytest.raises(Fenced):
            await old.read(0, start, end)

    play(scenario)


def test_a_failed_attempt_leaves_nothing(play: Play) -> None:
    """Its branch is not listed; that is all it takes."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        run = await world.run()
        start, end = await run.plan(None)
        values = await run.read(0, start, end)
        await run.stage(0, values)
        await run.commit(0, await run.stage(0, values))
        assert await world.read() == ["a!"]

    play(scenario)


def test_tasks_of_two_transactions_commit_nothing(play: Play) -> None:
    """The first transaction timed out in mid-batch, and a retried task began another."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        run = await world.run()
        start, end = await run.plan(None)
        values = await run.read(0, start, end)
        first = await run.stage(0, values)
        await abort_staged(run.host, [first])
        second = await run.stage(0, [])
        assert first.txn != second.txn
        with pytest.raises(BatchNotCommitted):
            await run.commit(0, first, second)
        assert await world.read() == []
        await run.replay(0, start, end)
        assert await world.read() == ["a!"]

    play(scenario)


def test_abort_never_undoes_a_commit(play: Play) -> None:
    """Spark calls abort when commit raised, also when it raised after the decision."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        run = await world.run()
        start, end = await run.plan(None)
        staged = await run.stage(0, await run.read(0, start, end))
        await run.commit(0, staged)
        await abort_staged(run.host, [staged])
        assert await world.read() == ["a!"]

    play(scenario)


def test_a_batch_that_reads_nothing_is_committed_without_acknowledgments(play: Play) -> None:
    """Spark runs one write task for a batch without partitions, and no read task."""

    async def scenario(world: Any) -> None:
        run = await world.run()
        await run.commit(0, await run.stage(0, []))
        assert await world.read() == []

    play(scenario)


def test_a_seek_while_the_query_runs_is_not_taken_back(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        run = await world.run()
        offset = await run.batch(0, None)
        layout = await world.host.topics.layout(TopicName.parse("in"))
        name = str(layout.name_of(0))
        await world.publish("c")
        start, end = await run.plan(offset)
        staged = await run.stage(1, await run.read(1, start, end))
        cursor = (await world.host.subscription(str(layout.topic), "g", name)).cursor
        sought = await cursor.seek((await cursor.load()).mark_delete)
        with pytest.raises(Diverged, match="seek"):
            await run.commit(1, staged)
        assert (await cursor.load()) == sought
        with pytest.raises(Diverged, match="delete the checkpoint"):
            await (await world.run()).planner.partitions(start, end)

    play(scenario)


def test_two_loads_of_one_group_in_one_query_are_refused(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        one = await world.run()
        two = await world.run()
        two.name = one.name
        ranges = await two.plan(None)
        await two.read(0, *ranges)
        with pytest.raises(Unsupported, match="twice"):
            await one.read(0, *ranges)

    play(scenario)


# -- without groupId ----------------------------------------------------------------------------------

UNGROUPED = {"subscribe": "in", "startingOffsets": "earliest"}


def test_without_a_group_the_application_record_recognises_a_replay(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        first = await world.run(source=UNGROUPED)
        start, end = await first.plan(None)
        await first.replay(0, start, end)
        second = await world.run(source=UNGROUPED)
        await second.replay(0, start, end)
        await world.publish("b")
        await second.batch(1, end.to_json())
        assert sorted(await world.read()) == ["a!", "b!"]

    play(scenario)


def test_without_a_group_a_new_query_under_an_old_application_is_refused(play: Play) -> None:
    """Nothing tells whether its batches were committed under the old query's numbers."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        await (await world.run("q1", source=UNGROUPED)).batch(0, None)
        with pytest.raises(NotJudgeable, match="txnAppReset"):
            await (await world.run("q2", source=UNGROUPED)).batch(0, None)
        assert await world.read() == ["a!"]
        reset = {"topic": "out", "txnAppId": "app", "txnAppReset": "true"}
        await (await world.run("q2", source=UNGROUPED, sink=reset)).batch(0, None)
        assert await world.read() == ["a!", "a!"]

    play(scenario)


# -- splits -------------------------------------------------------------------------------------------


def test_children_of_a_split_are_read_after_their_parent(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        run = await world.run()
        start, end = await run.plan(None, 1)
        offset = await run.replay(0, start, end)
        await world.host.topics.split(TopicName.parse("in"), 0)
        await world.publish("c", "d", "e", "f")
        await run.planner.watcher.refresh(TopicName.parse("in"))
        batches: list[list[str]] = []
        for number in range(1, 9):
            start, end = await run.plan(offset)
            if end == start:
                break
            batches.append(await run.read(number, start, end))
            await run.commit(number, await run.stage(number, batches[-1]))
            offset = end.to_json()
        assert batches[0] == ["b"]
        assert sorted(value for batch in batches[1:] for value in batch) == ["c", "d", "e", "f"]
        assert sorted(await world.read()) == ["a!", "b!", "c!", "d!", "e!", "f!"]

    play(scenario)


def test_an_output_segment_that_splits_in_mid_batch_loses_and_repeats_nothing(play: Play) -> None:
    async def scenario(world: Any) -> None:
        values = [f"v{number}" for number in range(40)]
        await world.publish(*values)
        run = await world.run()
        start, end = await run.plan(None)
        found = await run.read(0, start, end)
        low = await run.stage(0, found[:20])
        await world.host.topics.split(TopicName.parse("out"), 0)
        high = await run.stage(0, found[20:])
        await run.commit(0, low, high)
        assert sorted(await world.read()) == sorted(f"{value}!" for value in values)

    play(scenario)


@pytest.mark.parametrize("segments", [1, 3])
def test_every_trigger_keeps_its_bound_and_reads_on_where_it_stopped(play: Play, segments: int) -> None:
    async def scenario(world: Any) -> None:
        values = [f"v{number}" for number in range(17)]
        await world.publish(*values)
        run = await world.run()
        offset, seen = None, []
        for number in range(10):
            start, end = await run.plan(offset, 5)
            if offset is not None and end.to_json() == offset:
                break
            found = await run.read(number, start, end)
            assert 1 <= len(found) <= 5
            seen += found
            await run.commit(number, await run.stage(number, found))
            offset = end.to_json()
        assert sorted(seen) == sorted(values)

    play(scenario, segments)


# -- what the subscription and retention did ----------------------------------------------------------


def test_what_was_trimmed_unread_is_an_error_or_skipped_as_asked(play: Play) -> None:
    async def scenario(world: Any) -> None:
        run = await world.run(source={**UNGROUPED})
        await world.publish("a", "b")
        start, _ = await run.plan(None)
        topic = TopicName.parse("in")
        segment = await world.host.segment(str((await world.host.topics.layout(topic)).name_of(0)))
        open_ledger_id = (await segment.ledger.roll()).open_ledger_id
        await world.publish("c")
        await segment.buffer.trim(open_ledger_id)
        start, end = await run.plan(start.to_json())
        with pytest.raises(DataLost, match="failOnDataLoss"):
            await run.read(0, start, end)
        lenient = await world.run(source={**UNGROUPED, "failOnDataLoss": "false"})
        assert await lenient.read(0, start, end) == ["c"]
        fresh = await world.run(source=UNGROUPED)
        assert await fresh.read(0, *(await fresh.plan(None))) == ["c"]

    play(scenario)


def test_a_subscription_of_ordinary_consumers_is_waited_for(play: Play) -> None:
    async def scenario(world: Any) -> None:
        segment = "segment://public/default/in/0000-ffff-0"
        await world.host.topics.subscribe(TopicName.parse("in"), "g", "earliest")
        await world.host.metadata.acquire_lease(dispatching_lease(segment, "g"), "a consumer")
        given = {"subscribe": "in", "groupId": "g", "takeOverTimeoutMs": "1"}
        with pytest.raises(SubscriptionOwnedElsewhere, match="a consumer"):
            await world.run(source=given)

    play(scenario)


# -- where reading begins and what it shows -----------------------------------------------------------


def test_latest_begins_behind_what_is_there_and_a_replay_begins_there_too(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("old")
        latest = {"subscribe": "in"}
        first = await world.run(source=latest)
        start, _ = await first.plan(None)
        await world.publish("a")
        _, end = await first.plan(start.to_json())
        await world.publish("b")
        # Killed; the initial offset of the next run is behind everything that the batch holds.
        second = await world.run(source=latest)
        again, _ = await second.plan(None)
        assert again.frontier != start.frontier
        assert await second.read(0, again, end) == ["a"]

    play(scenario)


def test_uncommitted_messages_are_shown_where_asked_for_only(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("x", topic="out")
        writer = await world.run()
        await writer.stage(0, ["a"])
        shown = []
        for level in ("read_committed", "read_uncommitted"):
            source = {"subscribe": "out", "startingOffsets": "earliest", "isolationLevel": level}
            run = await world.run(source=source)
            shown.append(sorted(await run.read(0, *(await run.plan(None)))))
        assert shown == [["x"], ["a!", "x"]]

    play(scenario)


def test_two_topics_are_read_and_acknowledged_together(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.host.topics.create(TopicName.parse("more"), 2)
        await world.publish("a")
        await world.publish("b", "c", topic="more")
        source = {"subscribe": "in,more", "groupId": "g", "startingOffsets": "earliest"}
        run = await world.run(source=source)
        await run.batch(0, None)
        again = await world.run("q2", source=source)
        start, end = await again.plan(None)
        assert await again.read(0, start, end) == []
        assert sorted(await world.read()) == ["a!", "b!", "c!"]

    play(scenario)
