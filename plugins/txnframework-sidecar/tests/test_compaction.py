"""Compaction and retention: what happens between two of their steps, and what is left."""

from __future__ import annotations

import pytest
from sidecar_steps import (
    NAMES,
    compacted,
    filled,
    held,
    killed,
    send,
    stored,
    visible,
)
from sidecar_world import ShortLedgers

from txnframework.model import Position
from txnframework.testing import WorldHarness
from txnframework.testing.world import World
from txnframework_sidecar.buffer import SidecarBuffer


@pytest.fixture
def kind() -> type[WorldHarness]:
    return ShortLedgers


async def test_compaction_while_it_is_read(harness: WorldHarness, world: World) -> None:
    """A reader that is held up at any step while everything is compacted and trimmed reads the same, in its order."""
    everything, step, reached = list[str](), 0, True
    while reached:
        step += 1
        last = await world.buffer.max_read_position()
        expected = await filled(world, 3, 1_000 * step)
        everything += expected
        async with harness.open() as reader:
            reading, reached = await held(reader.connection, step, visible(reader, last))
            await compacted(world)
            reader.connection.restore()
            assert await reading == expected, f"held up at step {step}"
    assert await visible(world) == everything
    assert await stored(world, NAMES.sidecar) <= 4, "messages and notes of what is over are gone"
    for sequence in (1_000, 1_002):
        assert not await send(world, sequence), "what was compacted is still recognized"


async def test_killed_while_compacting(harness: WorldHarness) -> None:
    """A kill at any step of compaction loses nothing, and the next compaction continues."""
    async with harness.open() as other:
        expected = await filled(other, 2)
        step, reached = 0, True
        while reached:
            step += 1
            async with harness.open() as world:
                compacting, reached = await held(world.connection, step, world.buffer.trim(0))
                await killed(world, compacting)
            async with harness.open() as fresh:
                for process in (other, fresh):
                    assert await visible(process) == expected, f"killed at step {step}"
            await compacted(other)
            assert await visible(other) == expected
            expected += await filled(other, 2, 1_000 * step)


async def test_two_processes_compact_at_once(harness: WorldHarness) -> None:
    """Held up at any step of compaction while another process compacts too: nothing is lost or read twice."""
    async with harness.open() as other:
        expected = await filled(other, 2)
        step, reached = 0, True
        while reached:
            step += 1
            async with harness.open() as world:
                compacting, reached = await held(world.connection, step, world.buffer.trim(0))
                await compacted(other)
                world.connection.restore()
                await compacting
                async with harness.open() as fresh:
                    for process in (world, other, fresh):
                        assert await visible(process) == expected, f"held up at step {step}"
            expected += await filled(other, 2, 1_000 * step)


async def test_retention_follows_the_topic(harness: WorldHarness, world: World) -> None:
    """What the topic refers to no more goes from beside it, and what is kept in memory does not grow."""
    for turn in range(5):
        await filled(world, 4, 1 + 1_000 * turn)
        await world.ledger.roll()
        await send(world, 1_000 * turn + 999)
        last = await world.buffer.max_read_position()
        while (await world.buffer.trim(last.ledger_id)).left:
            pass
        assert await visible(world, Position(last.ledger_id, -1)) == [f"s{1_000 * turn + 999}"]
        assert await stored(world, NAMES.sidecar) <= 4
        assert await stored(world, NAMES.compacted) <= 4
    await filled(world, 1, 9_000)
    buffer = world.buffer
    assert isinstance(buffer, SidecarBuffer)
    sidecar, topic = buffer._ledgers.sidecar_state, buffer._ledgers.topic_state
    sizes = (
        sidecar.writing,
        sidecar.noted,
        sidecar.late,
        topic.repeated,
        topic.early_notes,
        topic.references.lowest,
    )
    assert max(map(len, sizes)) <= 4
