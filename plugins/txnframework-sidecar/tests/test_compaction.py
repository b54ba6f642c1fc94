"""Compaction and retention: what happens between two of their steps, and what is left."""

from __future__ import annotations

from sidecar_steps import (
    NAMES,
    Runner,
    begin,
    compacted,
    filled,
    held,
    killed,
    send,
    stored,
    visible,
)
from sidecar_world import ShortLedgers, SmallMarkers

from txnframework.model import (
    EARLIEST,
    Action,
    End,
    EntryRange,
    Limit,
    Position,
)
from txnframework.testing import WorldHarness
from txnframework.testing.world import SEGMENT
from txnframework_sidecar.buffer import SidecarBuffer
from txnframework_sidecar.compaction.format import Kind, decode_line
from txnframework_sidecar.model.markers import read_topic_entry


def test_compaction_while_it_is_read(run: Runner) -> None:
    """A reader that is held up at any step while everything is compacted and trimmed reads the same, in its order."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            everything, step, reached = list[str](), 0, True
            while reached:
                step += 1
                last = await world.buffer.max_read_position()
                expected = await filled(world, 3, 1_000 * step)
                everything += expected
                async with harness.open() as reader:
                    reading, reached = await held(reader.line, step, visible(reader, last))
                    await compacted(world)
                    reader.line.restore()
                    assert await reading == expected, f"held up at step {step}"
            assert await visible(world) == everything
            assert await stored(world, NAMES.sidecar) <= 4, "messages and notes of what is over are gone"
            for sequence in (1_000, 1_002):
                assert not await send(world, sequence), "what was compacted is still recognized"

    run(ShortLedgers, test)


def test_killed_while_compacting(run: Runner) -> None:
    """Killed at any step of compaction, nothing is lost, and whoever compacts next goes on."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as other:
            expected = await filled(other, 2)
            step, reached = 0, True
            while reached:
                step += 1
                async with harness.open() as world:
                    compacting, reached = await held(world.line, step, world.buffer.trim(0))
                    await killed(world, compacting)
                async with harness.open() as fresh:
                    for process in (other, fresh):
                        assert await visible(process) == expected, f"killed at step {step}"
                await compacted(other)
                assert await visible(other) == expected
                expected += await filled(other, 2, 1_000 * step)

    run(ShortLedgers, test)


def test_two_processes_compact_at_once(run: Runner) -> None:
    """Held up at any step of compaction while another process compacts too: nothing is lost or read twice."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as other:
            expected = await filled(other, 2)
            step, reached = 0, True
            while reached:
                step += 1
                async with harness.open() as world:
                    compacting, reached = await held(world.line, step, world.buffer.trim(0))
                    await compacted(other)
                    world.line.restore()
                    await compacting
                    async with harness.open() as fresh:
                        for process in (world, other, fresh):
                            assert await visible(process) == expected, f"held up at step {step}"
                expected += await filled(other, 2, 1_000 * step)

    run(ShortLedgers, test)


def test_a_large_transaction_has_several_markers_and_a_ledger_of_its_own(run: Runner) -> None:
    """It is read as a whole; compacted it stands alone, so that it goes as soon as the topic is trimmed behind it."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
            small, large = await begin(world), await begin(world)
            await send(world, 1, small)
            for sequence in range(10, 15):
                await send(world, sequence, large)
                assert await visible(world) == []
            await world.coordinator.end(End(small, Action.COMMIT))
            await world.coordinator.end(End(large, Action.COMMIT))
            await send(world, 20)
            expected = ["s1", *(f"s{sequence}" for sequence in range(10, 15)), "s20"]
            assert await visible(world) == expected
            last = (await world.ledger.tail()).last_confirmed
            entries = await world.ledger.read(EntryRange(EARLIEST, last), Limit(9))
            markers = [read_topic_entry(one, SEGMENT) for one in entries]
            assert [None if one is None else (one.number, one.parts, one.part.messages) for one in markers] == [
                (0, 1, 1),
                (0, 3, 2),
                (1, 3, 2),
                (2, 3, 1),
                None,
            ]
            await compacted(world)
            row = await world.ledgers.open(NAMES.compacted)
            kept = []
            for summary in await row.ledgers(-1, 9):
                upto = Position(summary.ledger_id, summary.entries - 1)
                lines = [
                    decode_line(one, "row")
                    for one in await row.read(EntryRange(Position(summary.ledger_id, -1), upto), Limit(9))
                ]
                kept.append([line.position.entry_id for line in lines if line.kind is Kind.KEPT])
            assert [1, 2, 3] in kept, "the large one stands alone"
            async with harness.open() as fresh:
                assert await visible(fresh) == expected

    run(SmallMarkers, test)


def test_retention_follows_the_topic(run: Runner) -> None:
    """What the topic refers to no more goes from beside it, and what is kept in memory does not grow."""

    async def test(harness: WorldHarness) -> None:
        async with harness.open() as world:
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
            index, stream = buffer._ledgers.index, buffer._ledgers.stream
            sizes = (index.writing, index.noted, index.late, stream.repeated, stream.ahead, stream.references.lowest)
            assert max(map(len, sizes)) <= 4

    run(ShortLedgers, test)
