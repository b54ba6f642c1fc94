"""Commits by a process that does not know what the owner of the transaction is doing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from metadata_world import SEGMENT, Process, World, branch_of, step

from txnframework.errors import InvalidTransactionState, NotTransactionOwner, TransactionConflict
from txnframework.model import Action, Begin, End, Reach, State, Transaction
from txnframework_metadata.options import BufferOptions

PUT_HEADER = step("put", "/txn/")
EVERYWHERE = pytest.mark.parametrize("options", [{}, {"reach": Reach.DATABASE}], ids=["apart", "together"])


async def commit_by_id(process: Process, txn: Transaction) -> Transaction:
    return await process.coordinator.end(End(txn.txn_id, Action.COMMIT, unfinished=True))


@EVERYWHERE
async def test_a_writer_that_checks_no_header_adds_nothing_after_the_commit(options: dict[str, Any]) -> None:
    """Without ``check_every_append`` a late send is refused by its ledger; the owner's commit changes nothing."""
    world = World(**options)
    world.buffer_options = BufferOptions(check_every_append=False)
    owner, other = await world.process(), await world.process()
    txn = await owner.begin()
    await owner.send("early", branch_of(txn))
    assert (await commit_by_id(other, txn)).state is State.COMMITTED
    with pytest.raises(TransactionConflict, match=r"it has ended \(COMMITTED\)"):
        await owner.send("late", branch_of(txn))
    await owner.send("plain")
    assert await other.values() == await owner.values() == ["early", "plain"]
    assert (await owner.commit(txn)).state is State.COMMITTED


@EVERYWHERE
async def test_nothing_is_added_while_the_commit_is_prepared(options: dict[str, Any]) -> None:
    """From the mark on every send of the transaction is refused; it is open, and its owner can end it."""
    world = World(**options)
    owner, other = await world.process(), await world.process()
    committed, aborted = await owner.begin(), await owner.begin()
    for txn in (committed, aborted):
        await owner.send("early", branch_of(txn))
        marked = other.wire.stop(PUT_HEADER)
        preparing = asyncio.ensure_future(commit_by_id(other, txn))
        await marked.reached.wait()
        last = other.wire.stop(PUT_HEADER)
        marked.go.set()
        await last.reached.wait()
        for branch in (branch_of(txn), branch_of(txn, 7)):
            with pytest.raises(TransactionConflict, match="a commit by its id has begun"):
                await owner.send("late", branch)
        assert (await owner.coordinator.describe(txn.txn_id)).state is State.OPEN
        ended = await (owner.commit if txn is committed else owner.abort)(txn)
        last.go.set()
        if txn is committed:
            assert await preparing == ended
        else:
            with pytest.raises(InvalidTransactionState):
                await preparing
    assert await owner.values() == await other.values() == ["early"]


async def test_a_first_send_to_an_empty_ledger_refuses_the_commit() -> None:
    """An empty ledger cannot be closed, so a message may still come: the commit is refused, until one is stored."""
    world = World()
    owner, other = await world.process(), await world.process()
    txn = await owner.begin()
    ledger: Any = await owner.ledger()
    append, reached, go = ledger.append, asyncio.Event(), asyncio.Event()

    async def held(*arguments: Any) -> Any:
        reached.set()
        await go.wait()
        return await append(*arguments)

    ledger.append = held
    sending = asyncio.ensure_future(owner.send("first", branch_of(txn)))
    await reached.wait()
    with pytest.raises(TransactionConflict, match=f"a send to {SEGMENT} may be under way"):
        await commit_by_id(other, txn)
    assert await other.values() == []
    go.set()
    await sending
    assert (await commit_by_id(other, txn)).state is State.COMMITTED
    assert await other.values() == await owner.values() == ["first"]


@pytest.mark.parametrize("number", [1, 2], ids=["mark", "decision"])
async def test_a_lost_reply(number: int) -> None:
    """If the reply to the mark or to the decision is lost, the header shows what happened."""
    world = World()
    owner, other = await world.process(), await world.process()
    txn = await owner.begin()
    await owner.send("sent", branch_of(txn))
    puts = iter(range(1, 10))
    other.wire.lose_reply(lambda name, argument: PUT_HEADER(name, argument) and next(puts) == number)
    assert (await commit_by_id(other, txn)).branches == frozenset({0})
    assert await owner.values() == ["sent"]


async def test_who_may_not_commit_changes_nothing() -> None:
    """Another principal is refused before the header is marked, so the owner can go on."""
    world = World()
    owner, other = await world.process(), await world.process()
    txn = await owner.coordinator.begin(Begin(60_000, "ada"))
    with pytest.raises(NotTransactionOwner):
        await commit_by_id(other, txn)
    assert (await other.coordinator.describe(txn.txn_id)).branches is None


async def test_a_deleted_segment_takes_nothing_more() -> None:
    """A segment that was deleted since does not prevent the commit."""
    world = World()
    owner, other = await world.process(), await world.process()
    txn = await owner.begin()
    await owner.send("sent", branch_of(txn))
    await other.ledgers.delete(SEGMENT, None)
    assert (await commit_by_id(other, txn)).state is State.COMMITTED
