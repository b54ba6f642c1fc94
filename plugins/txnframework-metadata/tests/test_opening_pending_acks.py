"""Opening a pending-ack store: pending acknowledgments, and transactions that have ended meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from metadata_world import (
    FIRST,
    SECOND,
    SEGMENT,
    SUBSCRIPTION,
    Process,
    World,
    applied,
    branch_of,
    step,
    waiting,
)

from txnframework.errors import Closed, TransactionConflict, TxnFrameworkError
from txnframework.model import Ack, AckRequest, Position, State, SweepResult, Transaction, TxnID


async def opened(process: Process) -> tuple[set[TxnID], dict[TxnID, State]]:
    found = await process.pending_acks().recover()
    return set(found.open), found.ended


async def test_opening_returns_what_is_held_and_settles_what_has_ended() -> None:
    """The process that committed died before it settled anything."""
    world = World()
    dead, process = await world.process(), await world.process()
    held, committed, aborted = [await dead.begin() for _ in range(3)]
    ack = Ack(Position(1, 3), 4, frozenset({0, 2}))
    await dead.acknowledge(held, ack, branch=7)
    await dead.acknowledge(committed, Ack(FIRST), Ack(Position(1, 4), 4, frozenset({1})))
    await dead.acknowledge(aborted, Ack(SECOND))
    await dead.commit(committed)
    await dead.abort(aborted)
    found = await process.pending_acks().recover()
    assert found.ended == {committed.txn_id: State.COMMITTED, aborted.txn_id: State.ABORTED}
    (pending,) = found.open[held.txn_id]
    assert (pending.branch, pending.ack, pending.state, pending.incarnation) == (
        branch_of(held, 7),
        ack,
        State.OPEN,
        1,
    )
    assert applied(world) == [FIRST, Position(1, 4)]
    assert world.operations() == 1
    assert await opened(process) == ({held.txn_id}, {})
    with pytest.raises(TransactionConflict):
        await process.acknowledge(await process.begin(), Ack(Position(1, 3), 4, frozenset({2, 3})))
    await process.acknowledge(await process.begin(), Ack(Position(1, 3), 4, frozenset({1, 3})))


async def test_opening_believes_the_cursor_when_a_header_is_gone() -> None:
    """Another process settled and collected the transaction during the opening."""
    world = World()
    process, other = await world.process(), await world.process()
    txn = await other.begin()
    await other.acknowledge(txn, Ack(FIRST))
    await other.commit(txn)
    stop = process.wire.stop(step("get", "/txn/"))
    opening = await waiting(process.pending_acks().recover())
    assert stop.reached.is_set()
    await other.coordinator.collect(world.environment.now_ms() + 10**9)
    assert world.paths("/txn/") == []
    stop.go.set()
    found = await opening
    assert (found.open, found.ended) == ({}, {})
    assert applied(world) == [FIRST]


async def test_subscriptions_and_segments_do_not_see_each_other() -> None:
    """Names with a common prefix, and one subscription on two segments, are separate."""
    world = World()
    process = await world.process()
    one, two = await process.begin(), await process.begin()
    await process.acknowledge(one, Ack(FIRST))
    for segment, subscription in ((SEGMENT, f"{SUBSCRIPTION}-2"), (f"{SEGMENT}/x", SUBSCRIPTION)):
        await process.pending_acks(segment, subscription).add(AckRequest(branch_of(two), (Ack(FIRST),), 1))
    await process.commit(one)
    await process.coordinator.settle(one.txn_id)
    assert world.operations() == 2


async def test_a_closed_store_says_so() -> None:
    """Every call raises Closed; closing may be repeated; an empty acknowledgment does nothing."""
    process = await World().process()
    txn: Transaction = await process.begin()
    await process.acknowledge(txn)
    acks = process.pending_acks()
    ended = await process.abort(txn)
    await acks.close()
    await acks.close()
    for call in (acks.recover(), process.acknowledge(txn, Ack(FIRST)), acks.settle(ended)):
        with pytest.raises(Closed):
            await call
    assert issubclass(Closed, TxnFrameworkError)


async def test_the_writes_of_a_commit_are_removed_with_its_acknowledgments() -> None:
    """By one step, after the cursor; the coordinator of the process finds nothing left to do."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    await process.send("a", branch_of(txn, 0))
    await process.acknowledge(txn, Ack(FIRST))
    await process.commit(txn)
    process.wire.steps.clear()
    assert await opened(process) == (set(), {txn.txn_id: State.COMMITTED})
    assert [name for name, _ in process.wire.steps] == ["scan_index", "get", "scan", "apply"]
    assert (applied(world), world.operations()) == ([FIRST], 0)
    process.wire.steps.clear()
    assert await process.coordinator.settle(txn.txn_id) == SweepResult(0, 0)
    assert [name for name, _ in process.wire.steps] == ["scan"]
    assert await process.values() == ["a"]


@pytest.mark.parametrize("is_committed", [False, True])
async def test_writes_that_do_not_count_wait_for_their_abort_records(is_committed: bool) -> None:
    """Also if the other branch of the segment counts."""
    world = World()
    process = await world.process()
    txn = await process.begin()
    for branch in (0, 7):
        await process.send(str(branch), branch_of(txn, branch))
    await process.acknowledge(txn, Ack(FIRST))
    await (process.commit(txn) if is_committed else process.abort(txn))
    await process.pending_acks().recover()
    assert (applied(world), world.operations()) == ([FIRST] if is_committed else [], 2)
    await process.coordinator.settle(txn.txn_id)
    assert world.operations() == 0
    assert await process.values() == (["0"] if is_committed else [])


async def test_the_coordinator_waits_for_a_subscription_that_settles_the_transaction() -> None:
    """Both would read and write the same; a cancelled subscription is no longer waited for."""
    world = World()
    process = await world.process()
    for is_cancelled in (False, True):
        txn = await process.begin()
        await process.send("a", branch_of(txn, 0))
        await process.acknowledge(txn, Ack(SECOND if is_cancelled else FIRST))
        await process.commit(txn)
        stop = process.wire.stop(step("apply", "/txn-op/"))
        opening = asyncio.ensure_future(process.pending_acks().recover())
        await stop.reached.wait()
        process.wire.steps.clear()
        settling = await waiting(process.coordinator.settle(txn.txn_id))
        assert process.wire.steps == []
        if is_cancelled:
            opening.cancel()
        stop.go.set()
        assert await settling == SweepResult(2 if is_cancelled else 0, 0)
        assert world.operations() == 0
    assert applied(world)[:2] == [FIRST, SECOND]
