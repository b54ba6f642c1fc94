"""What is read with ``groupId`` and written by another sink: acknowledged by a call, or refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from txnframework.errors import Fenced, TopicNotFound
from txnframework.model.names import TopicName
from txnframework.model.positions import EARLIEST
from txnframework_spark.errors import Diverged, NotAcknowledged, TopicLost
from txnframework_spark.microbatch.registration import RUN_BATCHES_MAX
from txnframework_spark.options.parser import StoreOptions
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.sink.acknowledgment import acknowledge_batch

Play = Callable[..., None]
SOURCE = {"subscribe": "in", "groupId": "g", "startingOffsets": "earliest"}
SINK = SinkOptions(StoreOptions())


async def written_elsewhere(run: Any, number: int, offset: Any, acknowledged: bool = False) -> tuple[list[str], Any]:
    """Run a batch whose rows another sink writes; return them and the offset that Spark keeps."""
    start, end = await run.plan(offset)
    rows = await run.read(number, start, end)
    if acknowledged:
        assert await acknowledge_batch(run.host, SINK, run.facts(number))
    return rows, end.to_json()


def test_a_sink_that_acknowledges_nothing_is_refused(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """After the first batch there is a warning, after the second one an error: the lag stays, nothing is trimmed."""

    async def scenario(world: Any) -> None:
        run, offset = await world.run(source=SOURCE), None
        for number in range(2):
            await world.publish(f"a{number}")
            rows, offset = await written_elsewhere(run, number, offset)
            assert rows == [f"a{number}"]
        warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warned) == 1
        assert "batches of subscription g of topic://public/default/in are not acknowledged" in warned[0]
        await world.publish("a2")
        with pytest.raises(NotAcknowledged, match=r"pyspark_txnframework\.acknowledge\(batch, batch_id\)") as found:
            await run.plan(offset)
        assert found.value.batches == 2

    play(scenario)


def test_a_job_of_one_batch_is_refused_when_it_comes_again(play: Play) -> None:
    """As a scheduler starts it: of each run there is one batch, and it is looked at when nothing more is there."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        run = await world.run(source=SOURCE)
        _, offset = await written_elsewhere(run, 0, None)
        start, end = await run.plan(offset)
        assert start == end
        again = await world.run(source=SOURCE)
        await world.publish("b")
        _, offset = await written_elsewhere(again, 1, offset)
        with pytest.raises(NotAcknowledged):
            await again.plan(offset)

    play(scenario)


def test_it_goes_on_where_that_is_allowed(play: Play) -> None:
    """And its progress says so, with how many of the last two batches of each run there are."""

    async def scenario(world: Any) -> None:
        run, offset = await world.run(source={**SOURCE, "allowUnacknowledged": "true"}), None
        for number in range(4):
            await world.publish(f"a{number}")
            rows, offset = await written_elsewhere(run, number, offset)
            assert rows == [f"a{number}"]
        await run.plan(offset)
        assert (await run.planner.report())["unacknowledged"] == {"topic://public/default/in": RUN_BATCHES_MAX}

    play(scenario)


def test_no_false_alarm(play: Play) -> None:
    """Our own sink: batches without rows, two topics, a replay, an older checkpoint, a lost one, a split."""

    async def scenario(world: Any) -> None:
        await world.host.topics.create(TopicName.parse("more"), 2)
        source = {**SOURCE, "subscribe": "in,more"}
        run, offset, offsets = await world.run(source=source), None, []
        for number in range(4):
            # The second topic has something in every other batch only.
            await world.publish(f"a{number}")
            if number % 2:
                await world.publish(f"m{number}", topic="more")
            if number == 2:
                await world.host.topics.split(TopicName.parse("in"), 0)
            start, end = await run.plan(offset)
            await run.read(number, start, end)
            await run.commit(number, await run.stage(number, []))
            offset = end.to_json()
            offsets.append((start, end))
        run = await world.run(source=source)
        await run.replay(3, *offsets[3])
        await world.publish("b")
        offset = await run.batch(4, offsets[3][1].to_json())
        older = await world.run(source=source)
        offset = offsets[1][1].to_json()
        for number in range(2, 6):
            start, end = await older.plan(offset)
            if start == end:
                break
            offset = await older.replay(number, start, end)
        lost, offset = await world.run(source=source, query="another"), None
        for number in range(3):
            await world.publish(f"c{number}")
            offset = await lost.batch(number, offset)
        assert "unacknowledged" not in await lost.planner.report()

    play(scenario)


def test_a_batch_is_acknowledged_by_a_call(play: Play) -> None:
    """Once, however often it comes: killed before the call it is read again, killed behind it it is a replay."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        run = await world.run(source=SOURCE)
        before, end = await run.plan(None)
        assert await run.read(0, before, end) == ["a", "b"]
        assert await world.cursor() == str(EARLIEST)

        # Killed when it was written, before it was acknowledged.
        run = await world.run(source=SOURCE)
        assert await run.read(0, before, end) == ["a", "b"]
        assert await acknowledge_batch(run.host, SINK, run.facts(0))
        acknowledged = await world.cursor()
        assert acknowledged != str(EARLIEST)

        # Killed before Spark knew of it.
        run = await world.run(source=SOURCE)
        await run.read(0, before, end)
        assert await acknowledge_batch(run.host, SINK, run.facts(0))
        assert await world.cursor() == acknowledged

        # It goes on, and a new query begins behind it.
        await world.publish("c")
        rows, _ = await written_elsewhere(run, 1, end.to_json(), acknowledged=True)
        assert rows == ["c"]
        await world.publish("d")
        lost = await world.run(source=SOURCE, query="another")
        rows, _ = await written_elsewhere(lost, 0, None, acknowledged=True)
        assert rows == ["d"]

    play(scenario)


def test_a_call_for_what_read_nothing_acknowledges_nothing(play: Play) -> None:
    async def scenario(world: Any) -> None:
        run = await world.run(source=SOURCE)
        assert not await acknowledge_batch(run.host, SINK, run.facts(0))

    play(scenario)


def test_a_run_that_was_overtaken_acknowledges_nothing(play: Play) -> None:
    """A run acknowledges nothing after a newer run has taken over the subscription, or after a seek."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        old = await world.run(source=SOURCE)
        start, end = await old.plan(None)
        await old.read(0, start, end)
        await world.run(source=SOURCE)
        with pytest.raises(Fenced):
            await acknowledge_batch(old.host, SINK, old.facts(0))
        assert await world.cursor() == str(EARLIEST)

        run = await world.run(source=SOURCE)
        start, end = await run.plan(None)
        await run.read(0, start, end)
        name = next(iter(end.frontier["topic://public/default/in"]))
        subscription = await run.host.subscription("topic://public/default/in", "g", name)
        await subscription.cursor.seek(EARLIEST)
        with pytest.raises(Diverged):
            await acknowledge_batch(run.host, SINK, run.facts(0))

    play(scenario)


def test_a_topic_that_is_deleted_is_not_taken_for_unacknowledged(play: Play) -> None:
    """A deleted topic, and finished segments that were removed, are reported as such, not as unacknowledged."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        for lenient in ("true", "false"):
            source = {**SOURCE, "groupId": f"g {lenient}", "failOnDataLoss": lenient}
            run = await world.run(source=source, query=f"q {lenient}", sink={"topic": "out", "txnAppId": lenient})
            offset = await run.batch(0, None)
            topic = TopicName.parse("in")
            await world.host.topics.delete(topic, force=True)
            if lenient == "true":
                with pytest.raises((TopicLost, TopicNotFound)):
                    await run.plan(offset)
            else:
                start, end = await run.plan(offset)
                assert start == end
            await world.host.topics.create(topic, 1)
            await world.publish("a")

    play(scenario)
