"""Planned ranges of a segment read the same every time."""

from __future__ import annotations

import pytest
from metadata_world import PUT_OPERATION, Process, World, branch_of, waiting

from txnframework.errors import EntryTrimmed, StoreMismatch, Unavailable
from txnframework.model import EARLIEST, Position
from txnframework_metadata.options import BufferOptions


async def test_a_plan_covers_a_range_with_the_aborted_branches_of_its_ledgers() -> None:
    """The plan is sufficient to read the range directly from the ledger."""
    world = World()
    process, reader = await world.process(), await world.process()
    branches = []
    for _ in range(3):
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        await process.abort(txn)
        branches.append(branch_of(txn))
        await (await process.ledger()).roll()
    await process.coordinator.settle(branches[0].txn_id)
    buffer = await reader.buffer()
    plan = await buffer.plan(EARLIEST, Position(3, 0))
    assert plan.aborted == frozenset(branches)
    assert (await buffer.plan(Position(1, 0), Position(2, 0))).aborted >= {branches[1]}
    assert (await buffer.plan(Position(3, 0), Position(3, 0))).entries.after == Position(3, 0)


async def late_writer(world: World) -> tuple[Process, object, Process]:
    """Return a writer with an intent below the announced position, and a new process."""
    process, reader = await world.process(), await world.process()
    txn = await process.begin()
    stop = process.wire.stop(PUT_OPERATION)
    late = await waiting(process.send("late", branch_of(txn)))
    await reader.send("a")
    await reader.send("b")
    assert await (await reader.buffer()).max_read_position() == Position(1, 1)
    stop.go.set()
    await late
    return process, txn, await world.process()


async def test_a_range_that_was_planned_once_is_never_shortened() -> None:
    """A process that computes a shorter range waits until it reaches the planned one."""
    world = World()
    world.buffer_options = BufferOptions(ahead_entries_max=1)
    process, txn, newcomer = await late_writer(world)
    buffer = await newcomer.buffer()
    planning = await waiting(buffer.plan(EARLIEST, Position(1, 1)))
    assert not planning.done()
    await process.abort(txn)  # type: ignore[arg-type]
    plan = await planning
    assert plan.entries.upto == Position(1, 1)
    assert plan.aborted == {branch_of(txn)}  # type: ignore[arg-type]


async def test_a_range_whose_writers_are_known_waits_for_nobody_else() -> None:
    """The entries of a range name their writers, if they fit in memory: a late intent below them is unrelated."""
    world = World()
    _, _, newcomer = await late_writer(world)
    plan = await (await newcomer.buffer()).plan(EARLIEST, Position(1, 1))
    assert plan.entries.upto == Position(1, 1)
    assert plan.aborted == frozenset()


async def test_waiting_for_a_range_is_bounded() -> None:
    """After the timeout, planning raises an error; a later call succeeds with the full range."""
    world = World()
    world.buffer_options = BufferOptions(ahead_entries_max=1)
    process, txn, newcomer = await late_writer(world)
    buffer = await newcomer.buffer()
    planning = await waiting(buffer.plan(EARLIEST, Position(1, 1)))
    await world.environment.advance(30_000)
    with pytest.raises(Unavailable):
        await planning
    await process.commit(txn)  # type: ignore[arg-type]
    assert (await buffer.plan(EARLIEST, Position(1, 1))).aborted == frozenset()


async def test_a_plan_of_what_is_not_there_is_refused() -> None:
    """A range beyond the ledger's end was planned on another store; one before its beginning was trimmed."""
    process = await World().process()
    for _ in range(3):
        await process.send("a")
        await (await process.ledger()).roll()
    buffer = await process.buffer()
    with pytest.raises(StoreMismatch, match="space-1"):
        await buffer.plan(EARLIEST, Position(9, 0))
    await buffer.trim(3)
    with pytest.raises(EntryTrimmed):
        await buffer.plan(EARLIEST, Position(3, 0))
    with pytest.raises(EntryTrimmed):
        await process.values()
    assert await process.values(Position(2, 0)) == ["a"]
