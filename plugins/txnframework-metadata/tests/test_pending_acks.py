"""Pending acknowledgments of transactions: the record is put first, and conflicts are checked afterwards."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import FIRST, LOOK, PUT_OPERATION, SECOND, THIRD, World, applied, branch_of, step, waiting

from txnframework.errors import (
    NotTransactionOwner,
    OutcomeUnknown,
    SubscriptionNotFound,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionNotFound,
    Unavailable,
)
from txnframework.interfaces import IPendingAckStore
from txnframework.model import EARLIEST, Ack, AckRequest, Begin, Branch, Position, ProcessedRange, Step, TxnID
from txnframework.plugin import verify_provider


def withdrawal(name: str, argument: object) -> bool:
    """Match the step that takes a record back."""
    return name == "delete" or (isinstance(argument, Step) and bool(argument.deletes))


async def test_it_keeps_the_contract_of_its_role() -> None:
    """verify_provider checks more than zope does."""
    verify_provider(IPendingAckStore, (await World().process()).pending_acks())


async def test_acks_take_effect_with_the_commit_and_not_with_the_abort() -> None:
    """Acks in an aborted or unlisted branch have no effect, and can be made again."""
    world = World()
    process, other = await world.process(), await world.process()
    txn, aborted = await process.begin(), await process.begin()
    await process.acknowledge(txn, Ack(FIRST))
    await process.acknowledge(txn, Ack(SECOND), branch=7)
    await process.acknowledge(aborted, Ack(THIRD))
    assert applied(world) == []
    await process.commit(txn)
    await process.abort(aborted)
    await other.coordinator.settle(txn.txn_id)
    await other.coordinator.settle(aborted.txn_id)
    assert applied(world) == [FIRST]
    assert world.operations() == 0
    later = await other.begin()
    await other.acknowledge(later, Ack(SECOND), Ack(THIRD))
    await other.commit(later)
    await process.coordinator.settle(later.txn_id)
    assert world.cursor().cursor is not None
    assert applied(world) == [FIRST, SECOND, THIRD]


async def test_two_transactions_cannot_hold_one_message() -> None:
    """The second transaction gets an error that names the first, and leaves no record; an abort frees the message."""
    world = World()
    process, other = await world.process(), await world.process()
    txn, second = await process.begin(), await other.begin()
    await process.acknowledge(txn, Ack(FIRST))
    for who in (process, other):
        with pytest.raises(TransactionConflict) as raised:
            await who.acknowledge(second, Ack(SECOND), Ack(FIRST))
        assert raised.value.other == txn.txn_id
    assert world.operations() == 1
    await process.abort(txn)
    await other.acknowledge(second, Ack(SECOND), Ack(FIRST))


async def test_of_two_processes_that_see_each_other_at_most_one_wins() -> None:
    """Both processes put before they read, so neither can miss the other."""
    for held_up in (PUT_OPERATION, LOOK):
        world = World()
        process, other = await world.process(), await world.process()
        one, two = await process.begin(), await other.begin()
        stop = process.wire.stop(held_up)
        first = await waiting(process.acknowledge(one, Ack(FIRST)))
        second = await waiting(other.acknowledge(two, Ack(FIRST)))
        stop.go.set()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert len([result for result in results if result is None]) <= 1
        for txn, result in zip((one, two), results, strict=True):
            if result is None:
                await process.commit(txn)
            else:
                assert isinstance(result, TransactionConflict)
        assert world.operations() == sum(result is None for result in results)


async def test_within_one_process_exactly_one_of_two_wins() -> None:
    """Requests of one process run one after the other."""
    world = World()
    process = await world.process()
    begun = [await process.begin() for _ in range(5)]
    results = await asyncio.gather(*(process.acknowledge(txn, Ack(FIRST)) for txn in begun), return_exceptions=True)
    assert [result is None for result in results].count(True) == 1


async def test_a_message_of_a_committed_transaction_that_is_not_settled_counts_as_deleted() -> None:
    """If the transaction is settled during the check, the cursor, which is read last, shows it."""
    world = World()
    process, other = await world.process(), await world.process()
    txn, second = await process.begin(), await other.begin()
    await process.acknowledge(txn, Ack(FIRST))
    await process.commit(txn)
    with pytest.raises(TransactionConflict, match="already"):
        await other.acknowledge(second, Ack(FIRST))
    stop = other.wire.stop(LOOK)
    late = await waiting(other.acknowledge(second, Ack(FIRST)))
    await process.coordinator.collect(world.environment.now_ms() + 10**9)
    assert applied(world) == [FIRST]
    stop.go.set()
    with pytest.raises(TransactionConflict):
        await late
    assert world.operations() == 0


async def test_repeating_an_ack_in_its_branch_succeeds() -> None:
    """The repetition may be partial, by another process, or after a plain ack moved the cursor; one record remains."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    await process.acknowledge(txn, Ack(FIRST), Ack(SECOND))
    await process.acknowledge(txn, Ack(FIRST), Ack(SECOND))
    await process.acknowledge(txn, Ack(SECOND))
    assert world.operations() == 1
    await other.acknowledge(txn, Ack(FIRST), Ack(SECOND))
    assert world.operations() == 1
    await process.acknowledge(txn, Ack(FIRST), Ack(SECOND))
    assert world.operations() == 1
    await world.cursor().apply(1, (Ack(FIRST),), None)
    await process.acknowledge(txn, Ack(FIRST), Ack(THIRD))
    assert world.operations() == 1


async def test_an_ack_on_a_transaction_that_has_ended_is_refused() -> None:
    """The ack is refused even if the transaction ends while the record is being written; the cursor is unchanged."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await process.begin()
    stop = process.wire.stop(PUT_OPERATION)
    late = await waiting(process.acknowledge(txn, Ack(FIRST)))
    await other.commit(txn)
    stop.go.set()
    with pytest.raises(TransactionConflict):
        await late
    with pytest.raises(TransactionConflict):
        await process.acknowledge(txn, Ack(SECOND))
    with pytest.raises(TransactionNotFound):
        await process.pending_acks().add(AckRequest(Branch(TxnID(0, 999)), (Ack(FIRST),), 1))
    with pytest.raises(TransactionDomainMismatch):
        await process.pending_acks().add(AckRequest(Branch(TxnID(0x8000, 9)), (Ack(FIRST),), 1))
    await other.coordinator.settle(txn.txn_id)
    assert applied(world) == []
    assert world.operations() == 0


async def test_somebody_elses_transaction_takes_no_acknowledgment() -> None:
    """Acks with another principal, or none, record nothing; those of the owner are recorded."""
    world = World()
    process = await world.process()
    txn = await process.coordinator.begin(Begin(60_000, "ada"))
    for principal in ("", "eve"):
        request = AckRequest(branch_of(txn), (Ack(FIRST),), 1, principal=principal)
        with pytest.raises(NotTransactionOwner):
            await process.pending_acks().add(request)
    assert world.operations() == 0
    await process.pending_acks().add(AckRequest(branch_of(txn), (Ack(FIRST),), 1, principal="ada"))
    assert world.operations() == 1


async def test_a_lost_reply_is_read_back() -> None:
    """The ack is recorded once, and counts."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    process.wire.lose_reply(PUT_OPERATION)
    await process.acknowledge(txn, Ack(FIRST))
    assert world.operations() == 1
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert applied(world) == [FIRST]


async def test_a_failed_look_withdraws_the_ack_or_says_that_it_cannot_tell() -> None:
    """A plain failure means that nothing is recorded; otherwise, the outcome is unknown."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    process.wire.refuse(LOOK)
    with pytest.raises(Unavailable):
        await process.acknowledge(txn, Ack(FIRST))
    assert world.operations() == 0
    process.wire.refuse(LOOK)
    process.wire.refuse(withdrawal)
    with pytest.raises(OutcomeUnknown):
        await process.acknowledge(txn, Ack(FIRST))
    assert world.operations() == 1
    await process.acknowledge(txn, Ack(SECOND))


async def test_a_write_that_fails_fails_the_ack_and_the_next_one_works() -> None:
    """A cancelled write behaves in the same way."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    process.wire.refuse(PUT_OPERATION)
    with pytest.raises(Unavailable):
        await process.acknowledge(txn, Ack(FIRST))
    stop = process.wire.stop(LOOK)
    task = await waiting(process.acknowledge(txn, Ack(FIRST)))
    assert stop.reached.is_set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await process.acknowledge(txn, Ack(FIRST))
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert set(applied(world)) == {FIRST}


async def test_acks_of_another_incarnation_are_refused_or_dropped() -> None:
    """After a seek or a new subscription, earlier acks have no effect."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await process.acknowledge(txn, Ack(FIRST))
    world.cursor().seek(EARLIEST)
    with pytest.raises(TransactionConflict):
        await process.acknowledge(txn, Ack(SECOND))
    other = await process.begin()
    await process.acknowledge(other, Ack(FIRST), incarnation=2)
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert applied(world) == []
    assert world.operations() == 1
    world.cursor().cursor = None
    with pytest.raises(SubscriptionNotFound):
        await process.acknowledge(other, Ack(SECOND), incarnation=2)
    assert world.operations() == 1


async def test_many_acks_stand_in_few_records_and_hold_together() -> None:
    """Each record has a limited number of acks, cumulative ones apart; one conflict withdraws all."""
    world = World()
    process = await world.process()
    txn, other = await process.begin(), await process.begin()
    acks = [Ack(Position(2, at)) for at in range(7)]
    await process.acknowledge(txn, *acks, Ack(Position(1, 5), cumulative=True))
    assert world.operations() == 4
    with pytest.raises(TransactionConflict):
        await process.acknowledge(other, *(Ack(Position(2, at)) for at in range(6, 16)))
    assert world.operations() == 4
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert len(applied(world)) == 8


async def test_the_cursor_moves_before_the_operation_goes() -> None:
    """If the cursor cannot be written, the record is kept; repeating the call finishes, once."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await process.acknowledge(txn, Ack(FIRST))
    await process.commit(txn)
    world.cursor().refused = 1
    assert (await process.coordinator.settle(txn.txn_id)).left == 1
    assert world.operations() == 1
    process.wire.lose_reply(step("apply delete", "/txn-op/"))
    await process.coordinator.settle(txn.txn_id)
    await process.coordinator.settle(txn.txn_id)
    assert set(applied(world)) == {FIRST}
    assert world.operations() == 0


async def test_what_a_batch_processed_comes_to_the_cursor_with_its_ack() -> None:
    """The range of the batch is stored with the operation, and reaches the cursor with the ack."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    processed = ProcessedRange("query-1", 3, EARLIEST, SECOND, 9)
    request = AckRequest(branch_of(txn), (Ack(SECOND, cumulative=True),), 1, processed)
    await process.pending_acks().add(request)
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert world.cursor().history == [processed]
    assert (await world.cursor().load()).mark_delete == SECOND
