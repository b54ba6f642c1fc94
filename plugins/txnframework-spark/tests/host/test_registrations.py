"""Which batches a subscription's record remembers, and which tasks it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txnframework.errors import Fenced
from txnframework.model import paths
from txnframework.model.metadata import Put
from txnframework.model.positions import Position
from txnframework_spark.microbatch.batch import MicroBatch
from txnframework_spark.microbatch.registration import (
    REGISTRATIONS_MAX,
    Range,
    Registration,
    load_registrations,
    load_subscription,
    register,
)

Play = Callable[..., None]

TOPIC = "topic://public/default/in"
SEGMENTS = 8


def reading(batch: int, epoch: int) -> Registration:
    """Return what a batch reads, planned under this epoch."""
    return Registration(TOPIC, "g", epoch, (Range(TOPIC, "s", Position(1, batch), Position(1, batch + 1)),))


async def remembered(world: Any) -> list[tuple[str, int]]:
    """Return run and number of the batches that the record remembers, the newest last."""
    _, record = await load_subscription(world.host.metadata, TOPIC, "g")
    return [(known.run, known.batch) for known in record.registrations]


def test_two_batches_of_a_run_are_remembered(play: Play) -> None:
    """A run decides a batch before it plans the next one; a late task of an older batch is refused."""

    async def scenario(world: Any) -> None:
        run = await world.run()
        await run.batch(0, None)
        store, epoch = world.host.metadata, (await load_subscription(world.host.metadata, TOPIC, "g"))[1].epoch
        for batch in range(4):
            await register(store, MicroBatch("q", "other", batch), reading(batch, epoch))
        kept = [(run.name, 0), ("other", 2), ("other", 3)]
        assert await remembered(world) == kept
        with pytest.raises(Fenced, match="batch 1 of query q was taken over by batch 3"):
            await register(store, MicroBatch("q", "other", 1), reading(1, epoch))
        await register(store, MicroBatch("q", "other", 2), reading(2, epoch))
        assert await remembered(world) == kept

    play(scenario)


def test_a_run_finds_its_batch_after_many_batches_of_another(play: Play) -> None:
    """A commit that was paused must not take its batch for one without acknowledgments."""

    async def scenario(world: Any) -> None:
        run = await world.run()
        await run.batch(0, None)
        store, epoch = world.host.metadata, (await load_subscription(world.host.metadata, TOPIC, "g"))[1].epoch
        for batch in range(5 * REGISTRATIONS_MAX):
            await register(store, MicroBatch("q", "other", batch), reading(batch, epoch))
        assert len(await load_registrations(store, run.facts(0))) == 1

    play(scenario)


def test_the_record_is_bounded_over_all_runs(play: Play) -> None:
    async def scenario(world: Any) -> None:
        await (await world.run()).batch(0, None)
        store, epoch = world.host.metadata, (await load_subscription(world.host.metadata, TOPIC, "g"))[1].epoch
        for number in range(REGISTRATIONS_MAX + 1):
            await register(store, MicroBatch("q", f"run {number}", 0), reading(0, epoch))
        assert await remembered(world) == [(f"run {number}", 0) for number in range(1, REGISTRATIONS_MAX + 1)]

    play(scenario)


def test_what_a_batch_acknowledged_on_many_segments_is_one_write(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the subscription's record, which would otherwise be written again for each segment."""

    async def scenario(world: Any) -> None:
        await world.publish(*map(str, range(40)))
        run = await world.run()
        start, end = await run.plan(None)
        staged = await run.stage(0, await run.read(0, start, end))
        before = await load_subscription(world.host.metadata, TOPIC, "g")
        written: list[Put] = []
        put = run.host.metadata.put

        async def noting(write: Put) -> int:
            written.append(write)
            return int(await put(write))

        monkeypatch.setattr(run.host.metadata, "put", noting)
        await run.commit(0, staged)
        _, record = await load_subscription(world.host.metadata, TOPIC, "g")
        assert (len(before[1].history), len({one.segment for one in record.history})) == (0, SEGMENTS)
        assert [one.key.path for one in written].count(paths.subscription_key(TOPIC, "g").path) == 1

    play(scenario, SEGMENTS)
