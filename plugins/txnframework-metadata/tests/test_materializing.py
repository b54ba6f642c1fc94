"""Settling outcomes in a segment, and trimming."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import OTHER_SEGMENT, SEGMENT, Process, World, branch_of, step, waiting

from txnframework.config import TransactionsSection
from txnframework.errors import Unavailable
from txnframework.model import Position, SweepResult
from txnframework.model.paths import abort_record_of, trimmed_key
from txnframework.model.records import TrimmedRecord, decode

WRITE_ABORT = step("put", "/txn-aborted/")


async def test_an_abort_record_stands_before_the_intent_goes() -> None:
    """If the abort record cannot be written, nothing is deleted; repeating the call finishes."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    ended = await process.abort(txn)
    buffer = await process.buffer()
    process.wire.refuse(WRITE_ABORT)
    with pytest.raises(Unavailable):
        await buffer.settle(ended)
    assert world.operations() == 1
    stop = process.wire.stop(step("apply delete", "/txn-op/"))
    settling = await waiting(buffer.settle(ended))
    assert stop.reached.is_set()
    assert len(world.paths("/txn-aborted/")) == 1
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)
    for _ in range(2):
        await buffer.settle(ended)
    assert world.operations() == 0
    assert await process.values() == []


async def test_settling_touches_this_segment_only_and_each_branch_by_its_outcome() -> None:
    """Committed branches leave no records, others leave one abort record for each ledger."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    for number in (0, 7, 8):
        await process.send("a", branch_of(txn, number))
    await (await process.ledger()).roll()
    await process.send("b", branch_of(txn, 8))
    await process.send("c", branch_of(txn), OTHER_SEGMENT)
    ended = await process.commit(txn, 0, 7)
    await (await process.buffer()).settle(ended)
    assert world.operations() == 1
    aborted = [abort_record_of(path)[1::2] for path in world.paths("/txn-aborted/")]
    assert aborted == [(1, 8), (2, 8)]


async def test_settling_reads_what_a_participant_has_to_do_and_no_more() -> None:
    """The coordinator reads the operations once for all participants, and removes them together."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    segments = [f"segment://public/default/wide-{at}/0000-ffff-0" for at in range(12)]
    for segment in segments:
        await process.send("a", branch_of(txn), segment)
    await process.abort(txn)
    process.wire.steps.clear()
    await process.coordinator.settle(txn.txn_id)
    assert world.operations() == 0
    assert len(world.paths("/txn-aborted/")) == 12
    scans = sum(step("scan", "/txn-op/")(*taken) for taken in process.wire.steps)
    assert scans <= 2 * (12 // 3 + 1), "the coordinator's two, in pages of three"
    assert not any(step("scan_index", "writes-by-segment")(*taken) for taken in process.wire.steps)
    assert sum(step("apply", "/txn-op/")(*taken) for taken in process.wire.steps) < 12


@pytest.mark.parametrize("lost", ["put /txn-aborted/", "apply delete /txn-op/"])
async def test_a_lost_reply_while_settling_is_repeated_without_harm(lost: str) -> None:
    """Any process may repeat any step."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await process.abort(txn)
    names, _, prefix = lost.rpartition(" ")
    process.wire.lose_reply(step(names, prefix))
    await process.coordinator.settle(txn.txn_id)
    await other.coordinator.settle(txn.txn_id)
    assert world.operations() == 0
    assert await other.values() == []


async def test_two_processes_settle_one_transaction_at_the_same_time() -> None:
    """Two processes may settle at once, because leases only save work."""
    world = World()
    processes = [await world.process() for _ in range(3)]
    txn = await processes[0].begin()
    for number in range(5):
        await processes[0].send("a", branch_of(txn, number))
    await processes[0].commit(txn, 0, 1)
    await asyncio.gather(*(process.coordinator.settle(txn.txn_id) for process in processes))
    assert world.operations() == 0
    assert await processes[1].values() == ["a", "a"]


async def test_only_an_ended_transaction_is_settled() -> None:
    """An open one has no outcome yet."""
    process = await World().process()
    txn = await process.begin()
    with pytest.raises(ValueError, match="OPEN"):
        await (await process.buffer()).settle(txn)
    with pytest.raises(ValueError, match="OPEN"):
        await process.pending_acks().settle(txn)


async def test_nothing_is_trimmed_that_an_open_transaction_may_still_commit() -> None:
    """Trimming stops at the max read position, whole ledgers at a time."""
    process = await World().process()
    ledger = await process.ledger()
    await process.send("a")
    await ledger.roll()
    txn = await process.begin()
    await process.send("b", branch_of(txn))
    await ledger.roll()
    await process.send("c")
    buffer = await process.buffer()
    await buffer.trim(3)
    assert await process.values(Position(2, -1)) == []
    await process.commit(txn)
    assert await process.values(Position(2, -1)) == ["b", "c"]
    await buffer.trim(3)
    assert await process.values(Position(3, -1)) == ["c"]


async def trimmed(process: Process) -> TrimmedRecord | None:
    """Return the stored progress of trimming: how far abort records were collected, and since when others wait."""
    found = await process.wire.inner.get(trimmed_key(SEGMENT))
    return None if found is None else decode(TrimmedRecord, found)


async def test_how_far_abort_records_were_collected_is_known_before_they_go() -> None:
    """Two concurrent collectors, and one that dies midway, never lower the stored position."""
    world = World(transactions=TransactionsSection(abort_retention_ms=0, max_clock_skew_ms=0))
    one, other = await world.process(), await world.process()
    txn = await one.begin()
    await one.send("a", branch_of(txn))
    await one.abort(txn)
    await one.coordinator.settle(txn.txn_id)
    await (await one.ledger()).roll()
    await (await one.buffer()).trim(2)
    stop = one.wire.stop(step("delete", "/txn-aborted/"))
    trimming = await waiting((await one.buffer()).trim(2))
    assert stop.reached.is_set()
    assert await trimmed(other) == TrimmedRecord(ledger=2, at_ms=world.environment.now_ms(), collected=2)
    assert await (await other.buffer()).trim(2) == SweepResult(1, 0, None)
    stop.go.set()
    await trimming
    assert await trimmed(other) == TrimmedRecord(ledger=0, at_ms=0, collected=2)
    await one.coordinator.forget_segment(SEGMENT, 10)
    assert await trimmed(other) is None


async def test_an_abort_record_outlives_its_ledger_by_the_retention() -> None:
    """
    Entries that were fetched before the ledger was trimmed are still judged by it; the process that trimmed may die.

    The clocks of the processes may differ, so the allowed difference is added.
    """
    world = World(transactions=TransactionsSection(abort_retention_ms=900, max_clock_skew_ms=100))
    process = await world.process()
    for _ in range(2):
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        await process.abort(txn)
        await process.coordinator.settle(txn.txn_id)
        await (await process.ledger()).roll()
    due_ms = world.environment.now_ms() + 1_000
    assert await (await process.buffer()).trim(2) == SweepResult(0, 0, due_ms)
    assert len(world.paths("/txn-aborted/")) == 2
    await world.environment.advance(999)
    assert await (await (await world.process()).buffer()).trim(2) == SweepResult(0, 0, due_ms)
    await world.environment.advance(1)
    buffer = await (await world.process()).buffer()
    assert await buffer.trim(2) == SweepResult(1, 0, None)
    assert [abort_record_of(path)[1] for path in world.paths("/txn-aborted/")] == [2]
    assert await trimmed(process) == TrimmedRecord(ledger=0, at_ms=0, collected=2)
    assert await process.values(Position(2, -1)) == []
    assert (await buffer.plan(Position(2, -1), Position(2, 0))).aborted


async def test_a_ledger_that_goes_later_keeps_its_abort_records_for_as_long() -> None:
    """A later ledger has its own waiting time, which begins when it is noted."""
    world = World(transactions=TransactionsSection(abort_retention_ms=1_000, max_clock_skew_ms=0))
    process = await world.process()
    for _ in range(2):
        txn = await process.begin()
        await process.send("a", branch_of(txn))
        await process.abort(txn)
        await process.coordinator.settle(txn.txn_id)
        await (await process.ledger()).roll()
    buffer = await process.buffer()
    await buffer.trim(2)
    await world.environment.advance(900)
    await buffer.trim(3)
    await world.environment.advance(100)
    noted_ms = world.environment.now_ms()
    assert await buffer.trim(3) == SweepResult(1, 0, noted_ms + 1_000)
    assert [abort_record_of(path)[1] for path in world.paths("/txn-aborted/")] == [2]
    await world.environment.advance(1_000)
    assert await buffer.trim(3) == SweepResult(1, 0, None)
    assert world.paths("/txn-aborted/") == []
    assert await trimmed(process) == TrimmedRecord(ledger=0, at_ms=0, collected=3)
    steps = len(process.wire.steps)
    assert await buffer.trim(3) == SweepResult(0, 0, None)
    assert not [name for name, _ in process.wire.steps[steps:] if name in ("put", "delete", "apply")]


async def test_a_segment_that_is_decided_to_its_end_is_trimmed_to_its_open_ledger() -> None:
    """Otherwise, an idle segment would keep its last closed ledger permanently."""
    process = await World().process()
    await process.send("a")
    await (await process.ledger()).roll()
    buffer = await process.buffer()
    txn = await process.begin()
    await buffer.trim(9)
    assert [one.entries for one in await (await process.ledger()).ledgers(-1, 9)] == [0]
    await process.send("b", branch_of(txn))
    await (await process.ledger()).roll()
    await buffer.trim(9)
    assert [one.entries for one in await (await process.ledger()).ledgers(-1, 9)] == [1, 0]
