"""The first append of a branch and its intent, as one step of a database that has both."""

from __future__ import annotations

import pytest
from metadata_world import SEGMENT, Process, World, step

from txnframework.errors import LedgerSealed, OutcomeUnknown, TransactionConflict
from txnframework.model import Branch, Position, Reach, State
from txnframework.model.records import WriteOperation
from txnframework_metadata.records.operations import scan_operations


@pytest.fixture
def world() -> World:
    return World(reach=Reach.DATABASE)


def steps_of(process: Process) -> list[str]:
    return [name for name, _ in process.wire.steps]


async def intents(process: Process, branch: Branch) -> list[WriteOperation]:
    found = await scan_operations(process.wire, branch.txn_id, 100)
    return [one.document for one in found if isinstance(one.document, WriteOperation)]


async def begun(process: Process) -> Branch:
    """Begin a transaction beside an open buffer, and forget the steps until then."""
    await process.send("before")
    branch = Branch((await process.begin()).txn_id, 0)
    process.wire.steps.clear()
    return branch


async def test_no_step_of_its_own(world: World) -> None:
    """The intent and the first entry are one step, and the intent names the position before the entry."""
    process, other = await world.process(), await world.process()
    branch = await begun(process)
    first = await process.send("one", branch)
    assert steps_of(process) == ["apply"]
    second = await process.send("two", branch)
    before = Position(first.ledger_id, first.entry_id - 1)
    assert second.entry_id == first.entry_id + 1
    assert [(one.ledger, one.after) for one in await intents(other, branch)] == [(first.ledger_id, str(before))]
    assert await other.values() == ["before"]
    await process.commit(await process.coordinator.describe(branch.txn_id))
    assert world.operations() == 0
    assert await other.values() == ["before", "one", "two"]


async def test_a_transaction_that_another_process_ended(world: World) -> None:
    """Neither an intent nor an entry is written after the end; the sender learns that the transaction has ended."""
    process, other = await world.process(), await world.process()
    branch = await begun(process)
    ended = await other.abort(await other.coordinator.describe(branch.txn_id))
    assert ended.state is State.ABORTED
    with pytest.raises(TransactionConflict):
        await process.send("late", branch)
    assert world.operations() == 0
    assert [value for value, _ in await other.shown()] == ["before"]


async def test_a_sealed_segment(world: World) -> None:
    """A sealed segment gets no intent, which would only be in the way of its readers."""
    process = await world.process()
    branch = await begun(process)
    await (await process.ledger()).seal()
    with pytest.raises(LedgerSealed):
        await process.send("late", branch)
    assert world.operations() == 0


async def test_the_next_ledger(world: World) -> None:
    """After the ledger was closed, the next append goes to the next ledger, together with an intent for it."""
    process = await world.process()
    branch = await begun(process)
    first = await process.send("one", branch)
    await (await process.ledger()).roll()
    second = await process.send("two", branch)
    assert second.ledger_id > first.ledger_id
    found = {one.ledger: one.after for one in await intents(process, branch)}
    assert found == {
        first.ledger_id: str(Position(first.ledger_id, first.entry_id - 1)),
        second.ledger_id: str(first),
    }


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_reply(applied: bool, world: World) -> None:
    """The same send again is stored once, and the commit leaves no intent that would hold readers back."""
    process, other = await world.process(), await world.process()
    branch = await begun(process)
    ledger = world.space.rows.find(SEGMENT)
    if applied:
        process.wire.lose_reply(step("apply", "/txn-op/"))
        with pytest.raises(OutcomeUnknown):
            await process.send_once("one", 1, branch)
        assert len(await intents(other, branch)) == 1
    again = await process.send_once("one", 1, branch)
    assert again.duplicate is applied
    assert again.position == ledger.tail().last_confirmed
    assert await other.values() == ["before"]
    await process.commit(await process.coordinator.describe(branch.txn_id))
    await process.coordinator.settle(branch.txn_id)
    assert world.operations() == 0
    assert await other.values() == ["before", "one"]


async def test_ledgers_elsewhere(world: World) -> None:
    """If the ledgers are in another database, the intent is a step of its own, before the entry."""
    process = await world.process()
    process.wire.location = object()  # type: ignore[attr-defined]
    branch = await begun(process)
    await process.send("one", branch)
    assert steps_of(process) == ["apply"]
    assert len(await intents(process, branch)) == 1
