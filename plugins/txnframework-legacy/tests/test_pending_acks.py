"""The pending-ack log: holders by the log's order, trimming with a base, and the note for other hosts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_conformance import LogFamilyInShortLedgers

from txnframework.errors import CorruptEntry, TransactionConflict, TransactionDomainMismatch
from txnframework.model import Ack, AckRequest, Action, Append, Begin, Branch, End, Expect, Position, Put, State, TxnID
from txnframework.model.acks import AckState
from txnframework.model.cursor import state_of
from txnframework.model.layout import from_record, to_record
from txnframework.model.layout_changes import create_layout
from txnframework.model.names import TopicName
from txnframework.model.paths import topic_key
from txnframework.model.records import TopicRecord, decode, encode
from txnframework.testing import WorldHarness, run_ready
from txnframework.testing.world import SUBSCRIPTION, TOPIC, World
from txnframework_legacy.pending_acks.holds import HeldAcks
from txnframework_legacy.pending_acks.records import AckDocument, Acked, Settled, Withdrawn
from txnframework_legacy.pending_acks.store import log_name

ONE, TWO, THREE = (TxnID(0x8000, number) for number in (1, 2, 3))


def acked(txn: TxnID, entry: int, token: int, incarnation: int = 1) -> Acked:
    document = AckDocument(position=f"0:{entry}")
    return Acked(txn=str(txn), branch=0, token=token, incarnation=incarnation, acks=[document])


def at(number: int, ledger: int = 7) -> Position:
    return Position(ledger, number)


async def either(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    """Wait until the task has ended or the event is set."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def test_the_first_record_holds() -> None:
    """Of overlapping records, only the first in the log counts; records of different incarnations do not conflict."""
    held = HeldAcks()
    for number, record in enumerate((acked(ONE, 5, 1), acked(TWO, 5, 2), acked(TWO, 6, 3), acked(THREE, 5, 4, 2))):
        held.apply(record, at(number))
    assert [held.has(txn, token) for txn, token in ((ONE, 1), (TWO, 2), (TWO, 3), (THREE, 4))] == [
        True,
        False,
        True,
        True,
    ]
    # A record is judged at its position: a later end gives nothing to a record that was refused.
    held.apply(Settled(txn=str(ONE), upto=str(at(3))), at(4))
    assert not held.has(TWO, 2)
    held.apply(acked(TWO, 5, 5), at(5))
    assert held.has(TWO, 5)


def test_settling_ends_what_was_seen() -> None:
    """A settled transaction holds none of its earlier records; a withdrawn call holds nothing."""
    held = HeldAcks()
    for number, record in enumerate((acked(ONE, 1, 1), acked(ONE, 2, 2), acked(ONE, 3, 3))):
        held.apply(record, at(number))
    held.apply(Withdrawn(txn=str(ONE), token=2), at(3))
    held.apply(Settled(txn=str(ONE), upto=str(at(1))), at(4))
    assert [held.has(ONE, token) for token in (1, 2, 3)] == [False, False, True]


def test_a_base_is_what_was_held() -> None:
    """Starting from a base gives the same state as reading everything, also if older records are settled later."""
    whole, later = HeldAcks(), HeldAcks()
    for number, record in enumerate((acked(ONE, 1, 1), acked(TWO, 2, 2), acked(ONE, 3, 3))):
        whole.apply(record, at(number))
    later.begin(whole.base(8))
    for number, record in enumerate((acked(THREE, 1, 4), Settled(txn=str(ONE), upto=str(at(1))), acked(THREE, 1, 5))):
        for held in (whole, later):
            held.apply(record, at(number, ledger=8))
    for held in (whole, later):
        tokens = [(ONE, 1), (TWO, 2), (ONE, 3), (THREE, 4), (THREE, 5)]
        assert [held.has(txn, token) for txn, token in tokens] == [False, True, True, False, True]


# -- over stores in memory ----------------------------------------------------------------------------


async def begin(world: World) -> TxnID:
    return (await world.coordinator.begin(Begin(60_000))).txn_id


async def add(world: World, txn: TxnID, *entries: int) -> None:
    await world.acks.add(AckRequest(Branch(txn), tuple(Ack(Position(0, entry)) for entry in entries), 1))


async def log_entries(world: World) -> list[int]:
    ledger = await world.ledgers.open(log_name(world.buffer.segment, 1, SUBSCRIPTION))
    return [one.entries for one in await ledger.ledgers(-1, 100)]


@pytest.mark.parametrize("kind", [LogFamilyInShortLedgers])
async def test_the_log_is_empty_when_all_have_ended(harness: WorldHarness, world: World) -> None:
    """While a transaction is open, about its own records are kept; afterwards, the log is empty."""
    still = await begin(world)
    await add(world, still, 1)
    for entry in range(2, 30):
        txn = await begin(world)
        await add(world, txn, entry)
        await world.coordinator.end(End(txn, Action.COMMIT))
        await world.acks.recover()
    assert sum(await log_entries(world)) <= 8
    async with harness.open() as fresh:
        assert set((await fresh.acks.recover()).open) == {still}
        with pytest.raises(TransactionConflict):
            await add(fresh, await begin(fresh), 1)
    await world.coordinator.end(End(still, Action.COMMIT))
    assert await log_entries(world) == [0]
    assert tuple((await world.cursor.load()).deleted) == ((Position(0, 1), Position(0, 29)),)


async def test_who_settles_at_the_same_moment_writes_once(harness: WorldHarness, world: World) -> None:
    """If several calls of one process apply an outcome at once, the first one records it."""
    await add(world, await begin(world), 1)  # which stays open, so that the log is not emptied
    for step in range(1, 9):
        txn = await begin(world)
        await add(world, txn, step + 1)
        held = world.connection.hold(step)
        ending = asyncio.ensure_future(world.coordinator.end(End(txn, Action.COMMIT)))
        await either(ending, held.reached)
        looking = [asyncio.ensure_future(world.acks.recover()) for _ in range(3)]
        await run_ready()
        world.connection.restore()
        await asyncio.gather(ending, *looking)
        await world.acks.recover()
        assert await log_entries(world) == [1 + 2 * step], f"at step {step}"


@pytest.mark.parametrize("kind", [LogFamilyInShortLedgers])
async def test_a_log_that_is_always_in_use_is_shortened(harness: WorldHarness, world: World) -> None:
    """The log of a host that always has pending acks is still shortened to about their size."""
    still = await begin(world)
    await add(world, still, 1)
    for entry in range(2, 30):
        txn = await begin(world)
        await add(world, txn, entry)
        await world.coordinator.end(End(txn, Action.COMMIT))
    assert sum(await log_entries(world)) <= 8
    async with harness.open() as fresh:
        assert set((await fresh.acks.recover()).open) == {still}


@pytest.mark.parametrize("kind", [LogFamilyInShortLedgers])
async def test_trimming_at_any_step_changes_nothing(harness: WorldHarness) -> None:
    """Whatever others add, settle or trim between two steps of trimming, all processes see the same holders."""
    async with harness.open() as other:
        step, reached = 0, True
        while reached:
            step += 1
            base = 100 * step
            async with harness.open() as world:
                kept, gone = await begin(other), await begin(other)
                await add(world, kept, base)
                for entry in range(1, 4):
                    await add(world, gone, base + entry)
                held = world.connection.hold(step)
                trimming = asyncio.ensure_future(world.acks.recover())
                await either(trimming, held.reached)
                reached = held.reached.is_set()
                await other.coordinator.end(End(gone, Action.ABORT))
                late = await begin(other)
                await add(other, late, base + 1)
                await other.acks.recover()
                world.connection.restore()
                await trimming
                async with harness.open() as fresh:
                    for one in (world, other, fresh):
                        assert set((await one.acks.recover()).open) == {kept, late}, f"at step {step}"
                        for entry in (base, base + 1):
                            with pytest.raises(TransactionConflict):
                                await add(one, await begin(one), entry)
                for txn in (kept, late):
                    await other.coordinator.end(End(txn, Action.COMMIT))


async def test_the_topic_says_where_to_look(harness: WorldHarness) -> None:
    """The topic's record names the family before the first ack, for hosts without its plugins."""
    topic = TopicName.parse(TOPIC)
    async with harness.open() as world:
        await world.store.put(Put(topic_key(topic), encode(to_record(create_layout(topic, 1))), Expect.ABSENT))
        await add(world, await begin(world), 1)
        record = await world.store.get(topic_key(topic))
        assert record is not None
        assert from_record(topic, decode(TopicRecord, record)).families == ("log",)


async def test_transactions_of_another_family_are_refused(harness: WorldHarness, world: World) -> None:
    """The decision of such a transaction is stored elsewhere, so nothing is recorded."""
    with pytest.raises(TransactionDomainMismatch):
        await add(world, TxnID(0, 1), 1)


async def test_what_cannot_be_read_is_not_passed_over(harness: WorldHarness, world: World) -> None:
    """A record that is none ends the recovery with an error that names it: it may hold messages."""
    ledger = await world.ledgers.create(log_name(world.buffer.segment, 1, SUBSCRIPTION))
    await ledger.append((Append(b"\x0e\x02\x00\x01{}"),), None)
    for _ in range(2):
        with pytest.raises(CorruptEntry, match="pending-acks"):
            await world.acks.recover()


async def test_an_outcome_that_was_not_told_everywhere_is_found(harness: WorldHarness, world: World) -> None:
    """A committed transaction that this subscription missed is settled when it is opened, or when it conflicts."""
    for recovers in (True, False):
        txn, entry = await begin(world), 10 + recovers
        await add(world, txn, entry)
        away = frozenset((await world.coordinator.describe(txn)).participants)
        world.participants.out_of_reach = set(away)
        ending = asyncio.ensure_future(world.coordinator.end(End(txn, Action.COMMIT)))
        await harness.settle()
        assert (await world.coordinator.describe(txn)).state is State.COMMITTED
        if recovers:
            assert (await world.acks.recover()).ended == {txn: State.COMMITTED}
        with pytest.raises(TransactionConflict):
            await add(world, await begin(world), entry)
        assert state_of(await world.cursor.load(), Position(0, entry)) is AckState.DELETED
        world.participants.out_of_reach = set()
        await harness.pass_time(1_000)
        assert (await ending).state is State.COMMITTED
