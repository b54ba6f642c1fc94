"""Producers are idempotent: a sequence is stored once, judged by the outcome of the stored copy."""

from __future__ import annotations

import pytest
from metadata_world import World, branch_of, entry, step, waiting

from txnframework.config import TransactionsSection
from txnframework.errors import TransactionConflict
from txnframework.model import Position, ProducerSequence
from txnframework.model.paths import header_key


async def test_the_same_send_again_in_the_same_branch_is_confirmed_and_stored_once() -> None:
    """Another process may continue the same branch."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    first = await process.send_once("a", 1, branch_of(txn))
    again = await other.send_once("a", 1, branch_of(txn))
    assert again.duplicate
    assert again.position == first.position
    await process.commit(txn)
    assert await process.values() == ["a"]


async def test_a_copy_outside_transactions_and_a_committed_one_count() -> None:
    """Such copies confirm the send, also after the header of the committed one is deleted."""
    world = World()
    process = await world.process()
    plain = await process.send_once("a", 1)
    txn = await process.begin()
    committed = await process.send_once("b", 2, branch_of(txn))
    await process.commit(txn)
    for _ in range(2):
        later = await process.begin()
        for sequence, position in ((1, plain.position), (2, committed.position)):
            for branch in (None, branch_of(later)):
                again = await process.send_once("x", sequence, branch)
                assert (again.duplicate, again.position) == (True, position)
        await process.abort(later)
        await process.coordinator.collect(world.environment.now_ms() + 10**9)
    assert world.paths("/txn/") == []
    assert await process.values() == ["a", "b"]


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("listed", [False, True])
async def test_a_copy_that_does_not_count_is_replaced(collected: bool, listed: bool) -> None:
    """A copy is replaced if it is aborted or in an unlisted branch, also if only its abort record remains."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await process.send_once("a", 1, branch_of(txn, 7))
    if listed:
        await process.abort(txn)
    else:
        await process.commit(txn, 0)
    if collected:
        await process.coordinator.collect(world.environment.now_ms() + 10**9)
        assert world.paths("/txn/") == []
    later = await process.begin()
    replaced = await process.send_once("b", 1, branch_of(later))
    assert not replaced.duplicate
    assert (await process.send_once("b", 1, branch_of(later))).position == replaced.position
    await process.commit(later)
    assert await process.values() == ["b"]


async def test_a_copy_in_another_open_transaction_or_branch_is_a_conflict() -> None:
    """The outcome of the copy is open; the conflict names its transaction."""
    process = await World().process()
    txn, other = await process.begin(), await process.begin()
    await process.send_once("a", 1, branch_of(txn))
    for branch in (branch_of(other), branch_of(txn, 7), None):
        with pytest.raises(TransactionConflict) as raised:
            await process.send_once("a", 1, branch)
        assert raised.value.other == txn.txn_id
    await process.abort(txn)
    await process.send_once("a", 1, branch_of(other))
    await process.commit(other)
    assert await process.values() == ["a"]


async def test_a_batch_that_is_partly_stored_is_reported_with_what_stands() -> None:
    """The error names the stored messages, and the caller sends the rest."""
    process = await World().process()
    buffer = await process.buffer()
    await buffer.append((entry("a", None, 1, 2, 3),))
    (answer,) = await buffer.append((entry("a", None, 2, 3, 4),))
    assert answer.duplicate
    assert answer.sequence == ProducerSequence("p", 1, 3)
    (rest,) = await buffer.append((entry("b", None, 4),))
    assert not rest.duplicate


async def test_aborted_batches_of_other_sizes_are_refused_clearly() -> None:
    """One entry cannot replace several copies; message by message it works."""
    process = await World().process()
    txn = await process.begin()
    buffer = await process.buffer()
    await buffer.append((entry("a", branch_of(txn), 1, 2), entry("b", branch_of(txn), 3, 4)))
    await process.abort(txn)
    with pytest.raises(TransactionConflict, match="one by one"):
        await buffer.append((entry("x", None, 2, 3),))
    for sequence in (2, 3):
        assert not (await process.send_once("x", sequence)).duplicate


async def test_a_repeated_call_keeps_the_order_of_its_entries() -> None:
    """Entries of an aborted branch are appended again, before those that were never sent."""
    process = await World().process()
    txn, later = await process.begin(), await process.begin()
    buffer = await process.buffer()
    await buffer.append((entry("1", branch_of(txn), 1), entry("2", branch_of(txn), 2)))
    await process.abort(txn)
    entries = tuple(entry(f"{at}", branch_of(later), at) for at in range(1, 5))
    appended = await buffer.append(entries)
    assert [answer.position for answer in appended] == [Position(1, at) for at in range(2, 6)]
    again = await buffer.append(entries)
    assert [answer.position for answer in again] == [answer.position for answer in appended]
    await process.commit(later)
    assert await process.values() == ["1", "2", "3", "4"]


async def test_a_replacement_that_meets_a_closed_ledger_goes_to_the_next_one() -> None:
    """Earlier work of the same call is not repeated."""
    world = World()
    process, other = await world.process(), await world.process()
    txn, later = await process.begin(), await process.begin()
    await process.send_once("1", 1, branch_of(txn))
    await process.abort(txn)
    await process.send("x", branch_of(later))
    stop = process.wire.stop(step("get", f"/txn/{txn.txn_id}"))
    sending = await waiting(process.send_once("1", 1, branch_of(later)))
    assert stop.reached.is_set()
    await (await other.ledger()).roll()
    stop.go.set()
    assert (await sending).position == Position(2, 0)
    await process.commit(later)
    assert await process.values() == ["x", "1"]


@pytest.mark.parametrize("settled", [True, False])
async def test_an_aborted_copy_is_not_confirmed_after_its_ledger_and_its_records_are_gone(settled: bool) -> None:
    """The ledger remembers sequences after their abort records are gone, so trimming also removes aborted sequences."""
    section = TransactionsSection(max_clock_skew_ms=0, retention_ms=1_000, abort_retention_ms=1_000)
    world = World(transactions=section)
    process = await world.process()
    txn, kept = await process.begin(), await process.begin()
    await process.send_once("lost", 7, branch_of(txn))
    committed = await process.send_once("kept", 8, branch_of(kept))
    await process.send_once("unlisted", 9, branch_of(kept, 5))
    await process.abort(txn)
    await process.commit(kept, 0)
    for ended in (txn, kept) if settled else ():
        await process.coordinator.settle(ended.txn_id)
    await (await process.ledger()).roll()
    await process.send("other")
    buffer = await process.buffer()
    await buffer.trim(2)
    await process.coordinator.collect(world.environment.now_ms() + 6_000)
    for _ in range(2):  # records that came after the ledger went begin to count when they are found
        await buffer.trim(2)
        await world.environment.advance(10_000)
    await buffer.trim(2)
    await process.coordinator.collect(world.environment.now_ms())
    assert world.paths("/txn-aborted/") + world.paths("/txn/") == []
    later = await process.begin()
    for value, sequence in (("lost", 7), ("unlisted", 9)):
        assert not (await process.send_once(value, sequence, branch_of(later))).duplicate
    again = await process.send_once("kept", 8, branch_of(later))
    assert (again.duplicate, again.position) == (True, committed.position)
    await process.commit(later)
    assert await process.values(Position(2, -1)) == ["other", "lost", "unlisted"]


async def test_a_conflict_in_the_middle_of_a_call_tells_of_its_entry_alone() -> None:
    """In the branch, other entries may be stored, and the branch must be dropped; outside, they are sent again."""
    process = await World().process()
    txn, other = await process.begin(), await process.begin()
    await process.send_once("2", 2, branch_of(other))
    entries = tuple(entry(f"{at}", branch_of(txn), at) for at in (1, 2, 3))
    with pytest.raises(TransactionConflict):
        await (await process.buffer()).append(entries)
    await process.abort(txn)
    await process.abort(other)
    assert await process.values() == []
    appended = await (await process.buffer()).append(tuple(entry(f"{at}", None, at) for at in (1, 2, 3)))
    assert not any(answer.duplicate for answer in appended)
    assert await process.values() == ["1", "2", "3"]


async def test_a_copy_that_was_trimmed_while_it_was_judged_confirms_nothing() -> None:
    """Its abort record may be deleted, too, so a missing record does not show that the copy is committed."""
    world = World()
    process, sender = await world.process(), await world.process()
    txn = await process.begin()
    await process.send_once("a", 1, branch_of(txn))
    await process.abort(txn)
    await process.coordinator.collect(world.environment.now_ms() + 10**9)
    await (await process.ledger()).roll()
    later = await sender.begin(80_000_000)
    stop = sender.wire.stop(step("get", header_key(txn.txn_id).path))
    sending = await waiting(sender.send_once("b", 1, branch_of(later)))
    assert stop.reached.is_set()
    for _ in range(2):
        await (await process.buffer()).trim(2)
        await world.environment.advance(world.transactions.abort_retention_ms + 1_000)
    assert world.paths("/txn-aborted/") == []
    stop.go.set()
    assert not (await sending).duplicate
    await sender.commit(later)
    assert await process.values(Position(2, -1)) == ["b"]
