"""Commits that also move the cursor and remove the operations: one step of the store, or the usual ones."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import FIRST, SECOND, SEGMENT, SUBSCRIPTION, Process, World, step

from txnframework.errors import InvalidTransactionState, Unavailable
from txnframework.model import Ack, Branch, Position, Reach, State, Transaction
from txnframework.model.cursor import Cursor
from txnframework_metadata.records.own_operations import TOGETHER_MAX

CONDITIONS = ["cursor", "seek", "header"]


@pytest.fixture
def world() -> World:
    return World(reach=Reach.STORE)


async def transfer(process: Process) -> Transaction:
    """Begin a transaction, send one message in it, and acknowledge another one."""
    await process.send("order")
    txn = await process.begin()
    await process.send("invoice", Branch(txn.txn_id, 0))
    await process.acknowledge(txn, Ack(FIRST))
    process.wire.steps.clear()
    return txn


async def cursor_of(process: Process) -> Cursor:
    return await process.cursor(SEGMENT, SUBSCRIPTION).load()


def steps_of(process: Process) -> list[str]:
    return [name for name, _ in process.wire.steps]


async def test_one_step(world: World) -> None:
    """The header, the cursor and the operations change in one batch; nothing is left to settle."""
    process, other = await world.process(), await world.process()
    txn = await transfer(process)
    assert await other.values() == ["order"]
    committed = await process.commit(txn)
    assert steps_of(process) == ["apply"]
    assert (committed.state, committed.branches) == (State.COMMITTED, {0})
    assert world.operations() == 0
    assert (await cursor_of(other)).mark_delete == FIRST
    assert await other.values() == ["order", "invoice"]
    process.wire.steps.clear()
    await process.coordinator.settle(txn.txn_id)
    assert steps_of(process) == ["scan"]
    # The same commit again succeeds, and the cursor can be planned again after it was read.
    assert (await process.commit(txn)).state is State.COMMITTED


async def test_nothing_is_kept_of_a_transaction_of_another_process(world: World) -> None:
    """Only transactions that this process may settle are remembered, so that memory stays bounded."""
    process, other = await world.process(), await world.process()
    await process.send("order")
    txn = await process.begin()
    await other.send("invoice", Branch(txn.txn_id, 7))
    await other.acknowledge(txn, Ack(FIRST), branch=7)
    assert other.coordinator.operations.own.take(txn.txn_id) is None


async def disturb(what: str, txn: Transaction, other: Process) -> None:
    """Let another process change what the commit relies on."""
    cursor = other.cursor(SEGMENT, SUBSCRIPTION)
    if what == "cursor":
        await cursor.apply(1, (Ack(SECOND),), None)
    elif what == "header":
        await other.abort(txn)
    else:
        await other.cursors[SEGMENT, SUBSCRIPTION].seek(Position(1, -1))


@pytest.mark.parametrize("what", CONDITIONS)
async def test_a_condition_that_is_not_met(what: str, world: World) -> None:
    """The batch changes nothing.

    The commit succeeds by the header alone, unless the transaction has ended otherwise.
    """
    process, other = await world.process(), await world.process()
    txn = await transfer(process)
    await disturb(what, txn, other)
    before = await cursor_of(other)
    if what == "header":
        with pytest.raises(InvalidTransactionState):
            await process.commit(txn)
    else:
        assert (await process.commit(txn)).state is State.COMMITTED
        assert steps_of(process) == ["apply", "put"]
    assert await cursor_of(other) == before
    assert world.operations() == 2
    await other.coordinator.settle(txn.txn_id)
    assert world.operations() == 0
    # After a seek, the acknowledgments have no effect.
    after = await cursor_of(other)
    assert (after.mark_delete, tuple(after.deleted)) == {
        "cursor": (SECOND, ()),
        "seek": (Position(1, -1), ()),
        "header": (before.mark_delete, ()),
    }[what]


async def test_lost_reply(world: World) -> None:
    """The header shows whether the batch was applied; the acknowledgment counts once."""
    process = await world.process()
    txn = await transfer(process)
    process.wire.lose_reply(step("apply", "/txn/"))
    assert (await process.commit(txn)).state is State.COMMITTED
    assert steps_of(process) == ["apply", "get"]
    assert world.operations() == 0
    assert (await cursor_of(process)).mark_delete == FIRST


async def test_lost_on_its_way(world: World) -> None:
    """A batch that was never applied is followed by the usual commit, and the settling does the rest."""
    process = await world.process()
    txn = await transfer(process)
    process.wire.drop(step("apply", "/txn/"))
    assert (await process.commit(txn)).state is State.COMMITTED
    assert steps_of(process) == ["apply", "get", "put"]
    assert world.operations() == 2
    await process.coordinator.settle(txn.txn_id)
    assert (await cursor_of(process)).mark_delete == FIRST


async def test_refused(world: World) -> None:
    """A refused batch changed nothing; the same commit can be tried again."""
    process = await world.process()
    txn = await transfer(process)
    process.wire.refuse(step("apply", "/txn/"))
    with pytest.raises(Unavailable):
        await process.commit(txn)
    assert world.operations() == 2
    assert (await process.commit(txn)).state is State.COMMITTED
    await process.coordinator.settle(txn.txn_id)
    assert (await cursor_of(process)).mark_delete == FIRST


async def test_a_branch_that_does_not_count(world: World) -> None:
    """Its operation remains until settlement, which writes an abort record first."""
    process, other = await world.process(), await world.process()
    txn = await transfer(process)
    await process.send("lost here", Branch(txn.txn_id, 7))
    await other.send("lost there", Branch(txn.txn_id, 8))
    await process.commit(txn)
    assert world.operations() == 2
    assert await other.values() == ["order", "invoice"]
    await process.coordinator.settle(txn.txn_id)
    assert world.operations() == 0
    assert len(world.paths("/txn-aborted/")) == 2
    fresh = await world.process()
    assert await fresh.values() == ["order", "invoice"]


async def test_cumulative_acknowledgments(world: World) -> None:
    """They are settled after the commit."""
    process = await world.process()
    await process.send("order")
    txn = await process.begin()
    await process.acknowledge(txn, Ack(FIRST, cumulative=True))
    await process.commit(txn)
    assert world.operations() == 1
    await process.coordinator.settle(txn.txn_id)
    assert (await cursor_of(process)).mark_delete == FIRST


async def test_many_operations(world: World) -> None:
    """The cost of a commit does not grow with the operations: too many are settled after it."""
    process = await world.process()
    txn = await process.begin()
    for number in range(TOGETHER_MAX + 1):
        segment = f"segment://public/default/many/0000-ffff-{number}"
        await process.send("one", Branch(txn.txn_id, 0), segment)
    process.wire.steps.clear()
    await process.commit(txn)
    assert steps_of(process) == ["put"]
    assert world.operations() == TOGETHER_MAX + 1


async def test_a_closed_segment(world: World) -> None:
    """Writes to a segment that is not open here any more are removed by the settling."""
    process = await world.process()
    txn = await transfer(process)
    await process.buffers.pop(SEGMENT).close()
    await process.commit(txn)
    assert world.operations() == 1
    assert (await cursor_of(process)).mark_delete == FIRST
    await process.coordinator.settle(txn.txn_id)
    assert world.operations() == 0


async def test_two_commits_at_the_same_time(world: World) -> None:
    """One of them moves the cursor as it commits, and the other one afterwards; no acknowledgment is lost."""
    process = await world.process()
    await process.send("0")
    await process.send("1")
    both = [await process.begin() for _ in range(2)]
    for txn, position in zip(both, (FIRST, SECOND), strict=True):
        await process.acknowledge(txn, Ack(position))
    ended = await asyncio.gather(*map(process.commit, both))
    assert [one.state for one in ended] == [State.COMMITTED] * 2
    assert world.operations() == 1
    for txn in both:
        await process.coordinator.settle(txn.txn_id)
    assert (await cursor_of(process)).mark_delete == SECOND


async def test_a_cancelled_commit(world: World) -> None:
    """Whether it was applied or not: the cursor can be planned again, and nothing is lost."""
    for turns in range(12):
        process = await world.process()
        position = Position(1, turns)
        await process.send("order")
        txn = await process.begin()
        await process.acknowledge(txn, Ack(position))
        task = asyncio.ensure_future(process.commit(txn))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await process.commit(txn)
        await process.coordinator.settle(txn.txn_id)
        assert (await cursor_of(process)).mark_delete == position
