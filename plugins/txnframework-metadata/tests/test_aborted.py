"""Aborted branches are looked up when entries are fetched; earlier aborts cost nothing until then."""

from __future__ import annotations

from itertools import product

import pytest
from metadata_world import SEGMENT, Process, World, branch_of, step, waiting

from txnframework.errors import EntryTrimmed
from txnframework.model import EARLIEST, Branch, Expect, Limit, Put, ReadRequest, TxnID, Visibility
from txnframework.model.paths import abort_record_key, header_key
from txnframework.model.records import AbortRecord, encode
from txnframework.testing.clock import run_ready
from txnframework_metadata.buffer.abort_records import aborted_branches, branch_outcome
from txnframework_metadata.options import BufferOptions

ABORT_RECORDS = step("get scan", "/txn-aborted/")


async def send_aborted(process: Process, value: str, *, settled: bool = True) -> Branch:
    """Send something in a transaction that is aborted."""
    txn = await process.begin()
    await process.send(value, branch_of(txn))
    await process.abort(txn)
    if settled:
        await process.coordinator.settle(txn.txn_id)
    return branch_of(txn)


async def put_records(process: Process, *places: tuple[int, Branch]) -> None:
    """Put abort records of these branches in these ledgers."""
    for ledger_id, branch in places:
        key = abort_record_key(SEGMENT, ledger_id, branch.txn_id, branch.number)
        await process.wire.put(Put(key, encode(AbortRecord(after="1:-1")), Expect.ABSENT))


async def test_opening_and_looking_again_cost_nothing_for_what_was_aborted_before() -> None:
    """Opening takes the same steps after forty aborted transactions as after none, and reads no abort records."""
    world = World()
    process = await world.process()
    await process.send("first")
    costs = []
    for aborted in (0, 40):
        for at in range(aborted):
            await send_aborted(process, f"{at}")
        opener = await world.process()
        buffer = await opener.buffer()
        await buffer.recover()
        await buffer.max_read_position()
        costs.append([name for name, _ in opener.wire.steps])
        assert not any(ABORT_RECORDS(*taken) for taken in opener.wire.steps)
    assert costs[0] == costs[1]
    assert await process.values() == ["first"]


async def test_an_outcome_is_looked_up_once() -> None:
    """A page needs one lookup for its unknown branches; reading the page again needs none."""
    world = World()
    world.buffer_options = BufferOptions()
    process, reader = await world.process(), await world.process()
    for at in range(8):
        await send_aborted(process, f"aborted {at}")
        txn = await process.begin()
        await process.send(f"{at}", branch_of(txn))
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
    buffer = await reader.buffer()
    for expected in (1, 0):
        reader.wire.steps.clear()
        page = await buffer.read(ReadRequest(EARLIEST, Limit(100)))
        assert (len(page.entries), len(page.skipped)) == (8, 8)
        assert sum(ABORT_RECORDS(*taken) for taken in reader.wire.steps) == expected


async def test_what_is_settled_while_others_are_looked_up_stays_hidden() -> None:
    """Outcomes of the last reading are saved before the lookup, because the next reading does not include them."""
    world = World()
    world.buffer_options = BufferOptions(outcomes_max=1)
    process, reader = await world.process(), await world.process()
    await send_aborted(process, "looked up")
    unsettled = await send_aborted(process, "settled meanwhile", settled=False)
    await send_aborted(process, "fills the memory", settled=False)
    await process.send("plain")
    buffer = await reader.buffer()
    await buffer.recover()
    stop = reader.wire.stop(ABORT_RECORDS)
    reading = await waiting(reader.values())
    assert stop.reached.is_set()
    await process.coordinator.settle(unsettled.txn_id)
    await buffer.max_read_position()
    stop.go.set()
    assert await reading == ["plain"]


@pytest.mark.parametrize("uncommitted", [False, True])
async def test_entries_that_were_trimmed_while_they_were_judged_are_not_shown(uncommitted: bool) -> None:
    """Abort records of trimmed entries may be deleted, so a missing record does not show that the entry is
    committed.
    """
    world = World()
    process, reader = await world.process(), await world.process()
    await send_aborted(process, "aborted")
    await (await process.ledger()).roll()
    buffer = await reader.buffer()
    await buffer.recover()
    stop = reader.wire.stop(ABORT_RECORDS)
    reading = await waiting(reader.shown() if uncommitted else reader.values())
    assert stop.reached.is_set()
    for _ in range(2):
        await (await process.buffer()).trim(2)
        await world.environment.advance(world.transactions.abort_retention_ms + 1_000)
    assert world.paths("/txn-aborted/") == []
    stop.go.set()
    with pytest.raises(EntryTrimmed):
        await reading


async def test_entries_beyond_what_is_decided_are_not_shown_either_once_they_were_trimmed() -> None:
    """Such entries are judged one by one, only for read_uncommitted, and within the same time as others."""
    world = World()
    process, reader = await world.process(), await world.process()
    txn = await process.begin()
    await process.send("aborted later", branch_of(txn))
    await (await reader.buffer()).recover()
    # The reading that a look at the segment begins with comes first, then the entry is judged.
    first, stop = (reader.wire.stop(step("get", header_key(txn.txn_id).path)) for _ in range(2))
    reading = await waiting(reader.shown())
    assert not stop.reached.is_set()
    first.go.set()
    await run_ready()
    assert stop.reached.is_set()
    await process.abort(txn)
    await process.coordinator.collect(world.environment.now_ms() + 10**9)
    await (await process.ledger()).roll()
    for _ in range(2):
        await (await process.buffer()).trim(2)
        await world.environment.advance(world.transactions.abort_retention_ms + 1_000)
    assert world.paths("/txn-aborted/") == []
    stop.go.set()
    with pytest.raises(EntryTrimmed):
        await reading


@pytest.mark.parametrize("asked", [1, 4, 5, 40])
async def test_looking_up_branches_reads_no_more_than_was_asked_for(asked: int) -> None:
    """A lookup does not read other aborted branches between the requested ones, of any coordinator."""
    process = await World().process()
    branches = [Branch(TxnID(at % 4, 1_000 * at), number) for at, number in product(range(asked), (0, 7))][:asked]
    aborted = set(branches[::3])
    others = [Branch(TxnID(coordinator, 500 + at)) for coordinator in range(4) for at in range(100)]
    await put_records(process, *((2, branch) for branch in [*aborted, *others]))
    await put_records(process, *((ledger_id, branch) for ledger_id in (1, 3) for branch in branches))
    process.wire.steps.clear()
    assert await aborted_branches(process.wire, SEGMENT, 2, branches, 7) == aborted
    assert len(process.wire.steps) <= asked


async def test_a_branch_is_found_in_whichever_ledger_it_is_aborted() -> None:
    """The lookup takes two requests for each ledger with abort records, and reads no records of other branches."""
    process = await World().process()
    others = [Branch(TxnID(0, at)) for at in range(1, 50)]
    await put_records(process, *((ledger_id, branch) for ledger_id in (1, 2, 5) for branch in others))
    wanted = [Branch(TxnID(0, 0)), Branch(TxnID(0, 7), 3), Branch(TxnID(1, 0))]
    await put_records(process, *((5, branch) for branch in wanted))
    unknown = [Branch(TxnID(0, 7), 2), Branch(TxnID(0, 7), 4), Branch(TxnID(0, 99)), Branch(TxnID(2, 0))]
    for branch in [*wanted, *unknown]:
        process.wire.steps.clear()
        outcome = await branch_outcome(process.wire, SEGMENT, branch, None)
        assert outcome is (Visibility.ABORTED if branch in wanted else Visibility.COMMITTED)
        assert len(process.wire.steps) <= 8
