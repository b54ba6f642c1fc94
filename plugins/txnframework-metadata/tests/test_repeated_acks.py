"""Repeated acknowledgments, and which of them were confirmed."""

from __future__ import annotations

import pytest
from metadata_world import FIRST, LOOK, PUT_OPERATION, SECOND, World, applied, step, waiting

from txnframework.errors import OutcomeUnknown, TransactionConflict
from txnframework.model import Ack, Step
from txnframework_metadata.options import PendingAckOptions


def withdrawal(name: str, argument: object) -> bool:
    """Match the step that takes a record back."""
    return name == "delete" or (isinstance(argument, Step) and bool(argument.deletes))


async def test_repeating_a_confirmed_ack_never_withdraws_it() -> None:
    """A confirmed ack remains even if the repetition is lost and another transaction's record exists briefly."""
    world = World()
    process, other = await world.process(), await world.process()
    txn, rival = await process.begin(), await other.begin()
    await process.acknowledge(txn, Ack(FIRST))
    stop = other.wire.stop(LOOK)
    late = await waiting(other.acknowledge(rival, Ack(FIRST)))
    assert stop.reached.is_set()
    process.wire.drop(PUT_OPERATION)
    await process.acknowledge(txn, Ack(FIRST))
    stop.go.set()
    with pytest.raises(TransactionConflict):
        await late
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert applied(world) == [FIRST]


async def test_an_ack_that_was_never_confirmed_is_judged_again_when_it_is_repeated() -> None:
    """Its record may exist beside a confirmed one of another transaction, and must not be applied with it."""
    world = World()
    process, other = await world.process(), await world.process()
    txn, rival = await process.begin(), await other.begin()
    await other.acknowledge(rival, Ack(FIRST))
    process.wire.refuse(withdrawal)
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            await process.acknowledge(txn, Ack(FIRST))
    await other.abort(rival)
    await process.acknowledge(txn, Ack(FIRST))
    assert world.operations() == 2, "the rival's, and of its own only the one that was confirmed"
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert applied(world) == [FIRST]


async def test_an_ack_whose_record_another_process_made_is_not_touched_on_a_conflict() -> None:
    """The other process may have confirmed it: the outcome is unknown, and the record remains."""
    world = World()
    process, other, third = await world.process(), await world.process(), await world.process()
    txn, rival = await process.begin(), await third.begin()
    await process.acknowledge(txn, Ack(FIRST))
    stop = third.wire.stop(LOOK)
    late = await waiting(third.acknowledge(rival, Ack(FIRST)))
    assert stop.reached.is_set()
    with pytest.raises(OutcomeUnknown):
        await other.acknowledge(txn, Ack(FIRST))
    stop.go.set()
    with pytest.raises(TransactionConflict):
        await late
    await process.commit(txn)
    await other.coordinator.settle(txn.txn_id)
    assert applied(world) == [FIRST]


async def test_an_ack_of_unknown_outcome_on_a_transaction_that_has_ended_stays_unknown() -> None:
    """The ack may have been recorded while the transaction was open, and then the commit applies it."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    process.wire.lose_reply(PUT_OPERATION)
    stop = process.wire.stop(step("scan", "/txn-op/"))
    adding = await waiting(process.acknowledge(txn, Ack(FIRST)))
    assert stop.reached.is_set()
    await other.commit(txn)
    stop.go.set()
    with pytest.raises(OutcomeUnknown):
        await adding
    process.wire.lose_reply(PUT_OPERATION)
    process.wire.refuse(step("scan", "/txn-op/"))
    with pytest.raises(OutcomeUnknown):
        await process.acknowledge(await process.begin(), Ack(SECOND))


async def test_confirmed_records_are_remembered_in_a_bounded_number() -> None:
    """The repetition of a forgotten record is checked anew and succeeds."""
    world = World()
    world.pending_ack_options = PendingAckOptions(page_records=3, confirmed_records_max=1)
    process = await world.process()
    txn = await process.begin()
    for position in (FIRST, SECOND, FIRST, SECOND):
        await process.acknowledge(txn, Ack(position), branch=position.entry_id)
    assert world.operations() == 2
