"""The sink refuses runs whose batches it cannot verify."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txnframework.errors import Fenced
from txnframework.model.names import TopicName
from txnframework_spark.errors import NotJudgeable, StateLost, Unsupported
from txnframework_spark.microbatch.batch import load_current_run
from txnframework_spark.sink.commit import Staged, require_no_acknowledgments

Play = Callable[..., None]

UNGROUPED = {"subscribe": "in", "startingOffsets": "earliest"}


def test_an_empty_first_batch_does_not_make_a_new_query_a_known_one(play: Play) -> None:
    """Without groupId, the input of a new query is unknown; an empty batch 0 does not change that."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        await (await world.run("q1", source=UNGROUPED)).batch(0, None)
        new = await world.run("q2", source=UNGROUPED)
        await new.commit(0, await new.stage(0, []))
        start, end = await new.plan(None)
        with pytest.raises(NotJudgeable, match="txnAppReset"):
            await new.replay(1, start, end)
        assert await world.read() == ["a!"]
        # The old query, with its checkpoint, goes on.
        old = await world.run("q1", source=UNGROUPED)
        await world.publish("b")
        await old.batch(1, end.to_json())
        assert sorted(await world.read()) == ["a!", "b!"]

    play(scenario)


def test_a_fenced_run_is_not_told_that_its_batch_was_a_replay(play: Play) -> None:
    """The cursor has passed its range, but it was another application's commit that moved it."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        await world.host.topics.create(TopicName.parse("out2"), 1)
        old = await world.run("q1", sink={"topic": "out", "txnAppId": "app1"})
        start, end = await old.plan(None)
        staged = await old.stage(0, await old.read(0, start, end))
        await (await world.run("q2", sink={"topic": "out2", "txnAppId": "app2"})).batch(0, None)
        with pytest.raises(Fenced, match="subscription g"):
            await old.commit(0, staged)
        assert await world.read() == []
        assert sorted(await world.read("out2")) == ["a!", "b!"]

    play(scenario)


STATEFUL = {"topic": "out", "txnAppId": "app", "txnAppStateful": "true"}


def test_a_stateful_query_without_its_state_is_refused(play: Play) -> None:
    """It would go on at the cursor with empty state, and put out what is not true."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        await (await world.run("q1", sink=STATEFUL)).batch(0, None)
        await world.publish("b")
        with pytest.raises(StateLost, match="q2 is new"):
            await (await world.run("q2", sink=STATEFUL)).batch(0, None)
        assert await world.read() == ["a!"]
        await (await world.run("q2", sink={**STATEFUL, "txnAppReset": "true"})).batch(0, None)
        assert sorted(await world.read()) == ["a!", "b!"]

    play(scenario)


def test_a_stateful_query_with_an_older_checkpoint_is_refused_and_with_its_own_goes_on(play: Play) -> None:
    """Batches between the checkpoint and the cursor would be cut anew; the last one, forgotten by Spark, is not."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        first = await world.run(sink=STATEFUL)
        zero = await first.batch(0, None)
        await world.publish("b")
        start, end = await first.plan(zero)
        one = await first.replay(1, start, end)
        await world.publish("c")
        await (await world.run(sink=STATEFUL)).replay(1, start, end)
        two = await (await world.run(sink=STATEFUL)).batch(2, one)
        assert sorted(await world.read()) == ["a!", "b!", "c!"]
        with pytest.raises(StateLost, match="the checkpoint continues with batch 1"):
            await (await world.run(sink=STATEFUL)).batch(1, zero)
        await world.publish("d")
        await (await world.run(sink=STATEFUL)).batch(3, two)
        assert sorted(await world.read()) == ["a!", "b!", "c!", "d!"]

    play(scenario)


UNTRANSACTED = {"topic": "out", "transactional": "false"}


def test_without_transactions_a_stream_writes_at_once_and_acknowledges_nothing(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await world.publish("a")
        run = await world.run(source=UNGROUPED, sink=UNTRANSACTED)
        start, end = await run.plan(None)
        values = await run.read(0, start, end)
        await require_no_acknowledgments(run.host.metadata, run.facts(0))
        await run.commit(0, Staged(None, 0, len(values), run.facts(0)))
        grouped = await world.run(sink=UNTRANSACTED)
        start, end = await grouped.plan(None)
        values = await grouped.read(0, start, end)
        for refused in (
            require_no_acknowledgments(grouped.host.metadata, grouped.facts(0)),
            grouped.commit(0, Staged(None, 0, len(values), grouped.facts(0))),
        ):
            with pytest.raises(Unsupported, match=r"subscription g of .* leave out groupId"):
                await refused

    play(scenario)


def test_a_late_task_of_a_dead_run_does_not_stop_the_newer_one(play: Play) -> None:
    """Its run had begun nothing before it died; the application record read by its driver shows which run is older."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        dead = await world.run(source=UNGROUPED)
        dead.follows = await load_current_run(dead.host, "app")
        newer = await world.run(source=UNGROUPED)
        newer.follows = await load_current_run(newer.host, "app")
        start, end = await newer.plan(None)
        staged = await newer.stage(0, await newer.read(0, start, end))
        with pytest.raises(Fenced, match=newer.name):
            await dead.stage(0, ["a"])
        await newer.commit(0, staged)
        assert await world.read() == ["a!"]
        # One that is started later follows it.
        last = await world.run(source=UNGROUPED)
        last.follows = await load_current_run(last.host, "app")
        assert last.follows == newer.name
        await last.replay(0, start, end)
        with pytest.raises(Fenced):
            await newer.stage(1, [])
        assert await world.read() == ["a!"]

    play(scenario)
