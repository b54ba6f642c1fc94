"""Transactions that commit with rows of the application: their settling shares steps, and reads nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest
from metadata_world import SEGMENT, SUBSCRIPTION, Process, World, entry, step

from txnframework.errors import TransactionConflict
from txnframework.model import Ack, AckState, Branch, Position, Reach, State, Transaction
from txnframework.model.cursor import state_of
from txnframework.model.transactions import Action, Begin, End
from txnframework_metadata.options import PendingAckOptions

LAST = Position(1, 2)


@pytest.fixture
def world() -> World:
    return World(reach=Reach.STORE)


async def begin_with_rows(process: Process) -> Transaction:
    return await process.coordinator.begin(Begin(60_000, co_commit=True))


async def commit_with_rows(process: Process, txn: Transaction) -> None:
    request = End(txn.txn_id, Action.COMMIT, branches=frozenset({0}))
    rows = await process.coordinator.join(process.wire.inner.connect())
    ended = await process.coordinator.end_with(request, rows)
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


async def test_one_step_moves_the_cursor_and_removes_all_operations(world: World) -> None:
    """Operations of other processes are looked up as after any commit."""
    process, other = await world.process(), await world.process()
    found = await committed(process)
    assert world.operations() == 6
    assert await settle(process, found) == ["apply", "scan"]
    assert world.operations() == 0
    assert (await other.cursor(SEGMENT, SUBSCRIPTION).load()).mark_delete == LAST
    assert (await other.values())[3:] == ["invoice"] * 3
    assert process.settled == []


async def test_operations_of_other_processes_are_found(world: World) -> None:
    """The entries of a branch that does not count get an abort record."""
    process, other = await world.process(), await world.process()
    txn = await begin_with_rows(process)
    await process.send("invoice", Branch(txn.txn_id, 0))
    await other.send("not counted", Branch(txn.txn_id, 7))
    await commit_with_rows(process, txn)
    await settle(process, [txn])
    assert world.operations() == 0
    assert await other.values() == ["invoice"]


@pytest.mark.parametrize("what", ["cursor", "operation", "dropped", "lost reply"])
async def test_what_the_step_does_not_do_is_done_by_reading(what: str, world: World) -> None:
    """A refused step changes nothing for any transaction; a step whose reply was lost has done everything."""
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


async def test_acknowledgments_before_a_seek_have_no_effect(world: World) -> None:
    """They belong to another incarnation of the cursor, and are removed."""
    process, other = await world.process(), await world.process()
    found = await committed(process)
    other.cursor(SEGMENT, SUBSCRIPTION)
    await other.cursors[SEGMENT, SUBSCRIPTION].seek(Position(1, -1))
    await settle(process, found)
    assert world.operations() == 0
    assert (await other.cursor(SEGMENT, SUBSCRIPTION).load()).mark_delete == Position(1, -1)


async def test_an_aborted_one_is_settled_by_reading(world: World) -> None:
    """Its entries need abort records."""
    process, other = await world.process(), await world.process()
    txn = await begin_with_rows(process)
    await process.send("invoice", Branch(txn.txn_id, 0))
    await process.abort(txn)
    await process.coordinator.settle(txn.txn_id)
    assert world.operations() == 0
    assert await other.values() == []


ENTRIES, BATCH, TRANSACTIONS = 2, 4, 5
"""What the test below acknowledges: so many entries of so many messages, in so many transactions."""
MESSAGES = [Position(1, number, index) for number in range(ENTRIES) for index in range(BATCH)]
FAULTS = ["", "", "", "lose_reply", "drop", "refuse"]


def acks_of(messages: Iterable[Position]) -> tuple[Ack, ...]:
    """Return acknowledgments of messages as the dispatch writes them: one for each entry."""
    indexes: dict[Position, set[int]] = {}
    for one in messages:
        indexes.setdefault(one.entry, set()).add(one.batch_index)
    return tuple(
        Ack(entry, BATCH, None if len(found) == BATCH else frozenset(found)) for entry, found in indexes.items()
    )


@pytest.mark.parametrize("seed", range(40))
async def test_the_rest_of_an_entry_is_delivered_again(seed: int, world: World) -> None:
    """The rest is delivered for every order of transactions, and however they share steps."""
    chance = random.Random(seed)

    world.pending_ack_options = PendingAckOptions(page_records=3, acks_per_record_max=chance.randint(1, ENTRIES))
    process, other = await world.process(), await world.process()
    for number in range(ENTRIES):
        await (await process.buffer()).append((entry("order", None, *range(number * BATCH, (number + 1) * BATCH)),))
    # The last two owners are no transactions: one acknowledges at once, and one never does.
    owned: list[list[Position]] = [[] for _ in range(TRANSACTIONS + 2)]
    for message in chance.sample(MESSAGES, len(MESSAGES)):
        chance.choice(owned).append(message)
    *in_transactions, at_once, never = owned
    fates = chance.choices(["rows", "rows", "rows", "commit", "abort"], k=TRANSACTIONS)
    txns = []
    for fate, messages in zip(fates, in_transactions, strict=True):
        txns.append(await (begin_with_rows(process) if fate == "rows" else process.begin()))
        middle = chance.randint(0, len(messages))
        for some in filter(None, (messages[:middle], messages[middle:])):
            await process.acknowledge(txns[-1], *acks_of(some))
    done: set[Position] = set()
    ended: list[int] = []

    async def check() -> None:
        cursor = await (await world.process()).cursor(SEGMENT, SUBSCRIPTION).load()
        assert {one for one in MESSAGES if state_of(cursor, one) is AckState.DELETED} == done

    async def settle_ended() -> None:
        if fault := chance.choice(FAULTS):
            getattr(process.wire, fault)(step("apply", "/"))
        await settle(process, [txns[number] for number in chance.sample(ended, len(ended))])
        done.update(one for number in ended for one in in_transactions[number])
        ended.clear()
        await check()

    for number in chance.sample(range(TRANSACTIONS), TRANSACTIONS):
        if chance.random() < 0.5 and at_once:
            some, at_once = at_once[:1], at_once[1:]
            assert await chance.choice([process, other]).cursor(SEGMENT, SUBSCRIPTION).apply(1, acks_of(some), None)
            done.update(some)
        if fates[number] == "rows":
            await commit_with_rows(process, txns[number])
            ended.append(number)
        elif fates[number] == "commit":
            await process.commit(txns[number])
            await process.coordinator.settle(txns[number].txn_id)  # what the commit did not settle
            done.update(in_transactions[number])
        else:
            await process.abort(txns[number])
            await other.coordinator.settle(txns[number].txn_id)
        await check()
        if any(in_transactions[one] for one in ended) and chance.random() < 0.4:
            await settle_ended()
    if any(in_transactions[one] for one in ended):
        await settle_ended()
    assert world.operations() == 0
    rest = set(MESSAGES) - done
    assert rest >= {*never, *at_once}
    # A message that is delivered can be acknowledged, and no other.
    later = await other.begin()
    for message in MESSAGES:
        if message in rest:
            await other.acknowledge(later, *acks_of([message]))
        else:
            with pytest.raises(TransactionConflict):
                await other.acknowledge(later, *acks_of([message]))
    await other.commit(later)
    assert (await other.cursor(SEGMENT, SUBSCRIPTION).load()).mark_delete == Position(1, ENTRIES - 1)
