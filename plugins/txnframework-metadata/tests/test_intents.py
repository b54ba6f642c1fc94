"""The intents that a process remembers to have written."""

from __future__ import annotations

import pytest
from metadata_world import FIRST as MESSAGE
from metadata_world import Process, World, branch_of

from txnframework.errors import NotTransactionOwner, TransactionConflict, TransactionNotFound
from txnframework.model import Ack, Begin, Branch, Transaction, TxnID
from txnframework_metadata.buffer.intents import _Noted
from txnframework_metadata.options import CoordinatorOptions

LONG_AFTER_MS = 10**9
FIRST, SECOND, THIRD = (TxnID(0, number) for number in range(1, 4))


def test_as_many_branches_as_configured_are_remembered() -> None:
    """Beyond the limit, a branch of the oldest transaction is forgotten; forgotten ones free their space."""
    noted = _Noted(3)
    noted.note(Branch(FIRST, 0), 1)
    noted.note(Branch(FIRST, 7), 1)
    noted.note(Branch(SECOND), 1)
    noted.note(Branch(SECOND), 2)
    noted.note(Branch(THIRD), 2)
    assert noted.get(Branch(FIRST, 0)) is None
    assert noted.get(Branch(FIRST, 7)) == 1
    assert noted.get(Branch(SECOND)) == 2
    noted.forget_all(FIRST)
    noted.forget(Branch(SECOND))
    for number in (1, 2):
        noted.note(Branch(SECOND, number), 3)
    assert [noted.get(branch) for branch in (Branch(SECOND, 1), Branch(SECOND, 2), Branch(THIRD))] == [3, 3, 2]


def read_headers(process: Process, txn: Transaction) -> int:
    """Return how often a process has read a transaction's header."""
    return sum(name == "get" and argument.path == f"/txn/{txn.txn_id}" for name, argument in process.wire.steps)


async def test_whoever_began_a_transaction_adds_to_it_without_reading_it() -> None:
    """The beginner knows the version of the header for its first operations; other processes read it."""
    world = World()
    process, other = await world.process(), await world.process()
    await process.send("plain")
    txn = await process.begin()
    for one, branch in ((process, branch_of(txn)), (other, branch_of(txn, 7))):
        await one.send("sent", branch)
    await process.acknowledge(txn, Ack(MESSAGE))
    assert read_headers(process, txn) == 0
    assert read_headers(other, txn) > 0
    await process.commit(txn, 0, 7)
    assert await other.values() == ["plain", "sent", "sent"]


async def test_what_was_forgotten_is_read() -> None:
    """Beyond the coordinator's limit, the oldest header is read."""
    world = World()
    world.coordinator_options = CoordinatorOptions(begun_max=1)
    process = await world.process()
    txn = await process.begin()
    await process.begin()
    await process.send("sent", branch_of(txn))
    assert read_headers(process, txn) == 1


@pytest.mark.parametrize("collected", [False, True], ids=["ended", "forgotten"])
async def test_what_another_process_ended_takes_nothing_from_whoever_began_it(collected: bool) -> None:
    """The remembered header is outdated then; the store refuses, or the header is read again."""
    world = World()
    process, other = await world.process(), await world.process()
    await process.send("plain")
    txn = await process.begin()
    await other.abort(txn)
    refused: type[Exception] = TransactionConflict
    if collected:
        await other.coordinator.collect(world.environment.now_ms() + LONG_AFTER_MS)
        refused = TransactionNotFound
    with pytest.raises(refused):
        await process.send("late", branch_of(txn))
    with pytest.raises(refused):
        await process.acknowledge(txn, Ack(MESSAGE))
    assert await other.values() == ["plain"]
    assert not world.paths("/txn-op/")


async def test_what_was_begun_here_takes_operations_of_its_owner_only() -> None:
    """The owner is checked with and without a read."""
    process = await World().process()
    txn = await process.coordinator.begin(Begin(60_000, principal="alice"))
    with pytest.raises(NotTransactionOwner):
        await process.send("mine", branch_of(txn))
    assert read_headers(process, txn) == 0
