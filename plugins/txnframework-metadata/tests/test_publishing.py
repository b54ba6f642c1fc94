"""Publishing to a segment."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import PUT_OPERATION, World, branch_of, entry, waiting

from txnframework.errors import (
    LedgerSealed,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionNotFound,
    Unavailable,
)
from txnframework.interfaces import IPlannableBuffer
from txnframework.model import EARLIEST, Branch, Limit, Position, ReadRequest, TxnID
from txnframework.plugin import verify_provider
from txnframework_metadata.options import BufferOptions


async def test_it_keeps_the_contract_of_its_role() -> None:
    """verify_provider checks more than zope does."""
    verify_provider(IPlannableBuffer, await (await World().process()).buffer())


async def test_a_transaction_is_invisible_until_it_commits_and_then_in_order() -> None:
    """Messages behind an open transaction wait for it; branches that are not listed are never shown."""
    world = World()
    process, reader = await world.process(), await world.process()
    await process.send("a")
    txn = await process.begin()
    await process.send("b", branch_of(txn))
    await process.send("c", branch_of(txn, 7))
    await process.send("d", branch_of(txn, 8))
    await process.send("e")
    assert await reader.values() == ["a"]
    assert await reader.shown() == [
        ("a", "committed"), ("b", "open"), ("c", "open"), ("d", "open"), ("e", "committed")
    ]  # fmt: skip
    await process.commit(txn, 0, 8)
    for _ in range(2):
        assert await reader.values() == ["a", "b", "d", "e"]
        assert await (await world.process()).values() == ["a", "b", "d", "e"]
        assert (await reader.shown())[2] == ("c", "aborted")
        await process.coordinator.settle(txn.txn_id)
    page = await (await reader.buffer()).read(ReadRequest(EARLIEST, Limit(100)))
    assert page.skipped == (Position(1, 2),)


async def test_the_intent_is_put_before_the_first_entry_and_once_for_a_ledger() -> None:
    """One record for each (branch, ledger), not one for each message."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    stop = process.wire.stop(PUT_OPERATION)
    sending = [await waiting(process.send(f"{at}", branch_of(txn))) for at in range(3)]
    assert stop.reached.is_set()
    assert (await (await process.ledger()).tail()).last_confirmed == Position(1, -1)
    stop.go.set()
    assert await asyncio.gather(*sending) == [Position(1, 0), Position(1, 1), Position(1, 2)]
    assert world.operations() == 1
    await process.send("x", branch_of(txn, 7))
    assert world.operations() == 2
    await (await process.ledger()).roll()
    assert await process.send("y", branch_of(txn)) == Position(2, 0)
    assert world.operations() == 3


async def test_a_send_on_a_transaction_that_has_ended_is_refused() -> None:
    """The send is refused even if the branch wrote before and another process ended it; an unknown one is not found."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await other.abort(txn)
    for branch in (0, 7):
        with pytest.raises(TransactionConflict):
            await process.send("b", branch_of(txn, branch))
    with pytest.raises(TransactionNotFound):
        await process.send("b", Branch(TxnID(0, 999)))
    with pytest.raises(TransactionDomainMismatch):
        await process.send("b", Branch(TxnID(0x8000, 1)))
    assert (await (await process.ledger()).tail()).last_confirmed == Position(1, 0)
    assert world.operations() == 1


async def test_a_transaction_that_ends_while_the_intent_is_on_its_way_gets_no_entry() -> None:
    """The batch's check refuses the intent, or the second check finds the end and withdraws it."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    stop = process.wire.stop(PUT_OPERATION)
    sending = await waiting(process.send("a", branch_of(txn)))
    await other.abort(txn)
    await other.coordinator.settle(txn.txn_id)
    stop.go.set()
    with pytest.raises(TransactionConflict):
        await sending
    assert world.operations() == 0
    assert (await (await process.ledger()).tail()).last_confirmed == Position(1, -1)


async def test_an_intent_of_unknown_outcome_is_read_back() -> None:
    """The stored intent is used, and the send succeeds."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    process.wire.lose_reply(PUT_OPERATION)
    await process.send("a", branch_of(txn))
    assert world.operations() == 1
    await process.commit(txn)
    assert await process.values() == ["a"]


async def test_an_intent_that_could_not_be_written_pins_nobody() -> None:
    """Readable positions do not depend on memory; a cancelled send leaves the buffer usable."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    process.wire.refuse(PUT_OPERATION)
    with pytest.raises(Unavailable):
        await process.send("a", branch_of(txn))
    stop = process.wire.stop(PUT_OPERATION)
    task = await waiting(process.send("b", branch_of(txn)))
    assert stop.reached.is_set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await process.send("c")
    assert await process.values() == ["c"]
    await process.send("d", branch_of(txn))
    await process.commit(txn)
    assert await process.values() == ["c", "d"]


async def test_a_writer_that_was_paused_never_appends_to_a_ledger_that_was_closed() -> None:
    """Its intent names the ledger; the append is refused, and the branch is admitted to the next one."""
    world = World()
    process, other = await world.process(), await world.process()
    await other.send("x")
    txn = await process.begin()
    stop = process.wire.stop(PUT_OPERATION)
    sending = await waiting(process.send("a", branch_of(txn)))
    await (await other.ledger()).roll()
    stop.go.set()
    assert await sending == Position(2, 0)
    assert world.operations() == 2
    await other.abort(txn)
    await other.coordinator.settle(txn.txn_id)
    assert len(world.paths("/txn-aborted/")) == 2
    assert await other.values() == ["x"]


async def test_a_sealed_segment_takes_nothing_and_no_intent() -> None:
    """The producer sends the entry to a child."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    await (await process.ledger()).seal()
    for branch in (0, 7):
        with pytest.raises(LedgerSealed):
            await process.send("b", branch_of(txn, branch))
    with pytest.raises(LedgerSealed):
        await process.send("b")
    assert world.operations() == 1
    await process.commit(txn)
    assert await process.values() == ["a"]


async def test_the_entries_of_one_call_are_of_one_branch() -> None:
    """Entries of two branches in one call could not be refused together."""
    process = await World().process()
    txn = await process.begin()
    with pytest.raises(ValueError, match="one branch"):
        await (await process.buffer()).append((entry("a"), entry("b", branch_of(txn))))


async def test_intents_are_remembered_for_a_bounded_number_of_writers() -> None:
    """A forgotten writer costs one more record."""
    world = World()
    world.buffer_options = BufferOptions(intents_max=1)
    process = await world.process()
    txn = await process.begin()
    for number in (0, 7, 0, 7):
        await process.send(f"{number}", branch_of(txn, number))
    assert world.operations() == 4
    await process.commit(txn, 0, 7)
    assert await process.values() == ["0", "7", "0", "7"]


async def test_the_check_of_every_append_can_be_switched_off() -> None:
    """Without the check, further sends do not access the metadata store; ends in this process are still noticed."""
    world = World()
    world.buffer_options = BufferOptions(check_every_append=False)
    process = await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn))
    steps = len(process.wire.steps)
    await process.send("b", branch_of(txn))
    assert len(process.wire.steps) == steps
    await process.abort(txn)
    await process.coordinator.settle(txn.txn_id)
    with pytest.raises(TransactionConflict):
        await process.send("c", branch_of(txn))
