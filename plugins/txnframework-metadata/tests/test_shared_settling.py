"""Transactions that commit with rows of the application: their settling shares steps, and reads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from metadata_world import SEGMENT, SUBSCRIPTION, Process, World, step
from msgspec import structs

from txnframework.interfaces import IDatabaseTransaction
from txnframework.model import Ack, Branch, Position, State, Transaction
from txnframework.model.metadata import Put
from txnframework.model.transactions import Action, End

LAST = Position(1, 2)


class Rows:
    """A database transaction of the application, in the database of the records."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._puts: list[Put] = []

    async def put(self, put: Put) -> None:
        self._puts.append(put)

    async def commit(self) -> None:
        for put in self._puts:
            await self._process.wire.inner.put(put)


def run(test: Callable[[World], Awaitable[None]]) -> None:
    asyncio.run(test(World(wide=True)))


async def begin_with_rows(process: Process) -> Transaction:
    txn = await process.begin()
    begun = process.coordinator.operations.begun
    header = begun.known(txn.txn_id)
    assert header is not None
    begun.note(txn.txn_id, structs.replace(header, transaction=structs.replace(txn, co_commit=True)))
    return txn


async def commit_with_rows(process: Process, txn: Transaction) -> None:
    request = End(txn.txn_id, Action.COMMIT, branches=frozenset({0}))
    ended = await process.coordinator.end_with(request, cast(IDatabaseTransaction, Rows(process)))
    assert ended.state is State.COMMITTED


async def committed(process: Process) -> list[Transaction]:
    """Return three transactions, each of which acknowledged one message and sent one."""
    for value in ("a", "b", "c"):
        await process.send(value)
    found = []
    for number in range(3):
        txn = await begin_with_rows(process)
        await process.send("invoice", Branch(txn.txn_id, 0))
        await process.acknowledge(txn, Ack(Position(1, number)))
        await commit_with_rows(process, txn)
        found.append(txn)
    process.wire.steps.clear()
    return found


async def settle(process: Process, found: list[Transaction]) -> list[str]:
    """Settle transactions at the same time, and return the names of the steps."""
    await asyncio.gather(*(process.coordinator.settle(txn.txn_id) for txn in found))
    return [name for name, _ in process.wire.steps]


def test_one_step_moves_the_cursor_and_removes_all_operations() -> None:
    """What other processes wrote is looked for as after any commit."""

    async def main(world: World) -> None:
        process, other = await world.process(), await world.process()
        found = await committed(process)
        assert world.operations() == 6
        assert await settle(process, found) == ["apply", "scan"]
        assert world.operations() == 0
        assert (await other.cursor(SEGMENT, SUBSCRIPTION).load()).mark_delete == LAST
        assert (await other.values())[3:] == ["invoice"] * 3
        assert process.settled == []

    run(main)


def test_operations_of_other_processes_are_found() -> None:
    """The entries of a branch that does not count get an abort record."""

    async def main(world: World) -> None:
        process, other = await world.process(), await world.process()
        txn = await begin_with_rows(process)
        await process.send("invoice", Branch(txn.txn_id, 0))
        await other.send("not counted", Branch(txn.txn_id, 7))
        await commit_with_rows(process, txn)
        await settle(process, [txn])
        assert world.operations() == 0
        assert await other.values() == ["invoice"]

    run(main)


@pytest.mark.parametrize("what", ["cursor", "operation", "dropped", "lost reply"])
def test_what_the_step_does_not_do_is_done_by_reading(what: str) -> None:
    """A refused step changes nothing, for none of them; one whose reply was lost has done everything."""

    async def main(world: World) -> None:
        process, other = await world.process(), await world.process()
        found = await committed(process)
        if what == "cursor":
            await other.cursor(SEGMENT, SUBSCRIPTION).apply(1, (Ack(Position(1, 1)),), None)
        elif what == "operation":
            await other.coordinator.settle(found[0].txn_id)
        elif what == "dropped":
            process.wire.drop(step("apply", "/"))
        else:
            process.wire.lose_reply(step("apply", "/"))
        steps = await settle(process, found)
        assert steps[0] == "apply"
        assert bool(process.settled) is (what != "lost reply")
        assert world.operations() == 0
        assert (await other.cursor(SEGMENT, SUBSCRIPTION).load()).mark_delete == LAST

    run(main)


def test_acknowledgments_before_a_seek_have_no_effect() -> None:
    """They are of another incarnation of the cursor, and are removed."""

    async def main(world: World) -> None:
        process, other = await world.process(), await world.process()
        found = await committed(process)
        other.cursor(SEGMENT, SUBSCRIPTION)
        await other.cursors[SEGMENT, SUBSCRIPTION].seek(Position(1, -1))
        await settle(process, found)
        assert world.operations() == 0
        assert (await other.cursor(SEGMENT, SUBSCRIPTION).load()).mark_delete == Position(1, -1)

    run(main)


def test_an_aborted_one_is_settled_by_reading() -> None:
    """Its entries need abort records."""

    async def main(world: World) -> None:
        process, other = await world.process(), await world.process()
        txn = await begin_with_rows(process)
        await process.send("invoice", Branch(txn.txn_id, 0))
        await process.abort(txn)
        await process.coordinator.settle(txn.txn_id)
        assert world.operations() == 0
        assert await other.values() == []

    run(main)
