"""Acknowledgment records that grow with what their branch acknowledges later."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import FIRST, LOOK, PUT_OPERATION, SECOND, THIRD, World, applied, waiting

from txnframework.errors import OutcomeUnknown, TransactionConflict
from txnframework.model import Ack, Position
from txnframework_metadata.options import PendingAckOptions


async def test_later_acks_go_into_the_record_that_is_there() -> None:
    """A full record gets a successor; of cumulative acks, only the furthest is kept."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    for at in range(7):
        await process.acknowledge(txn, Ack(Position(2, at)))
    assert world.operations() == 3
    for at in range(7):
        await process.acknowledge(txn, Ack(Position(1, at), cumulative=True))
    assert world.operations() == 4
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert set(applied(world)) == {Position(1, 6), *(Position(2, at) for at in range(7))}


async def test_a_message_of_a_batch_each_time_costs_one_position() -> None:
    """Parts of one entry are joined, and separated again when the last one is refused."""
    world = World()
    process, other = await world.process(), await world.process()
    txn, rival = await process.begin(), await other.begin()
    await other.acknowledge(rival, Ack(FIRST, 9, frozenset({8})))
    for index in range(8):
        await process.acknowledge(txn, Ack(FIRST, 9, frozenset({index})))
    with pytest.raises(TransactionConflict):
        await process.acknowledge(txn, Ack(FIRST, 9))
    assert world.operations() == 2
    await process.acknowledge(txn, Ack(FIRST, 9, frozenset(range(8))))
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert (await world.cursor().load()).partial == {FIRST: frozenset(range(8))}


@pytest.mark.parametrize("applied_first", [True, False])
async def test_growing_with_a_lost_reply_is_read_back(applied_first: bool) -> None:
    """The record shows whether it grew; if not, the write is repeated."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await process.acknowledge(txn, Ack(FIRST))
    (process.wire.lose_reply if applied_first else process.wire.drop)(PUT_OPERATION)
    await process.acknowledge(txn, Ack(SECOND))
    await process.acknowledge(txn, Ack(THIRD))
    assert world.operations() == 1
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert applied(world) == [FIRST, SECOND, THIRD]


async def test_what_a_withdrawal_left_in_doubt_grows_no_more() -> None:
    """Earlier confirmed acks may be repeated; later acks get a record of their own."""
    world = World()
    process, other = await world.process(), await world.process()
    txn, rival = await process.begin(), await other.begin()
    await process.acknowledge(txn, Ack(FIRST))
    await other.acknowledge(rival, Ack(SECOND))
    stop = process.wire.stop(LOOK)
    adding = await waiting(process.acknowledge(txn, Ack(SECOND)))
    assert stop.reached.is_set()
    process.wire.refuse(PUT_OPERATION)
    stop.go.set()
    with pytest.raises(OutcomeUnknown):
        await adding
    await process.acknowledge(txn, Ack(FIRST))
    await process.acknowledge(txn, Ack(THIRD))
    assert world.operations() == 3
    with pytest.raises(OutcomeUnknown):
        await process.acknowledge(txn, Ack(SECOND))


async def test_acks_at_the_same_time_cost_one_write() -> None:
    """Concurrent acks take one write and one read; calls that arrive meanwhile share the next group."""
    world = World()
    world.pending_ack_options = PendingAckOptions()
    process = await world.process()
    txn = await process.begin()
    process.wire.steps.clear()
    await asyncio.gather(*(process.acknowledge(txn, Ack(Position(1, at))) for at in range(50)))
    assert [name for name, _ in process.wire.steps] == ["apply", "scan_index"]


async def test_a_record_goes_only_once_all_of_it_stands_in_another() -> None:
    """Two acknowledgments of one record are repeated, and one now conflicts.

    The new record has only the other one, and the old record, which may be confirmed, stays.
    """
    world = World()
    world.pending_ack_options = PendingAckOptions(confirmed_records_max=1)
    process, dies = await world.process(), await world.process()
    txn, other = await process.begin(), await process.begin()
    await process.acknowledge(txn, Ack(FIRST), Ack(SECOND))
    await process.acknowledge(txn, Ack(THIRD), branch=7)  # so that the record is not remembered
    dies.wire.stop(LOOK)
    task = await waiting(dies.acknowledge(other, Ack(SECOND)))
    results = await asyncio.gather(
        process.acknowledge(txn, Ack(FIRST)), process.acknowledge(txn, Ack(SECOND)), return_exceptions=True
    )
    assert [type(one) for one in results] == [type(None), OutcomeUnknown]
    task.cancel()
    await process.abort(other)
    await process.commit(txn)
    await process.coordinator.settle(txn.txn_id)
    assert {FIRST, SECOND} <= set(applied(world))
