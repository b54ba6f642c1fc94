"""The marker buffer: the effect of markers, hidden entries, snapshots, and the limit of a sealed topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from test_conformance import LogFamilyInShortLedgers

from txnframework.errors import (
    CorruptEntry,
    EndTransactionTimeout,
    LedgerSealed,
    StoreMismatch,
    TransactionDomainMismatch,
)
from txnframework.model import (
    EARLIEST,
    Action,
    Append,
    Begin,
    Branch,
    End,
    EntryRange,
    Isolation,
    Limit,
    Position,
    ReadRequest,
    State,
    Transaction,
    TxnID,
    Visibility,
)
from txnframework.model.entries import encode_entry
from txnframework.model.entry_view import EntryMessage, EntryView
from txnframework.testing import WorldHarness
from txnframework.testing.world import World
from txnframework_legacy.buffer.markers import MARKER_BRANCH, Marker, marker_of, read_entry
from txnframework_legacy.buffer.snapshots import SnapshotOptions, Snapshots, snapshots_name
from txnframework_legacy.buffer.state import AbortedBranch, TopicState

ONE, TWO = TxnID(0x8000, 1), TxnID(0x8000, 2)
Run = Callable[[type[WorldHarness], Callable[[WorldHarness], Awaitable[None]]], None]


def at(number: int, ledger: int = 1) -> Position:
    return Position(ledger, number)


def folded(*found: tuple[Branch | Marker | None, Position]) -> TopicState:
    state = TopicState()
    for one, position in found:
        state.apply(one, position)
    return state


# -- what entries and markers mean --------------------------------------------------------------------


def test_a_marker_decides_what_stands_in_front_of_it() -> None:
    """Listed branches take effect, others do not; an open transaction blocks everything behind it."""
    entries = [(None, at(0)), (Branch(ONE), at(1)), (Branch(ONE, 5), at(2)), (Branch(TWO), at(3)), (None, at(4))]
    state = folded(*entries)
    assert (state.readable(), state.of_branch(Branch(ONE))) == (at(0), Visibility.OPEN)
    state.apply(Marker(ONE, frozenset({0})), at(5))
    assert state.readable() == at(2)
    assert [state.visibility(branch, place) for branch, place in entries[:3]] == [
        Visibility.COMMITTED,
        Visibility.COMMITTED,
        Visibility.ABORTED,
    ]
    state.apply(Marker(TWO, frozenset()), at(6))
    assert (state.readable(), state.visibility(Branch(TWO), at(3))) == (at(6), Visibility.ABORTED)


def test_what_stands_behind_its_marker_never_counts() -> None:
    """A writer that was paused while its transaction was committed appends without effect, and blocks no reader."""
    state = folded((Branch(ONE), at(0)), (Marker(ONE, frozenset({0})), at(1)), (Branch(ONE), at(2)))
    assert state.readable() == at(2)
    assert state.visibility(Branch(ONE), at(0)) is Visibility.COMMITTED
    assert state.visibility(Branch(ONE), at(2)) is Visibility.ABORTED


def test_the_first_marker_decides() -> None:
    """A second marker, of a process that repeated the end, changes nothing."""
    markers = ((Marker(ONE, frozenset()), at(1)), (Marker(ONE, frozenset({0})), at(2)))
    state = folded((Branch(ONE), at(0)), *markers)
    assert state.visibility(Branch(ONE), at(0)) is Visibility.ABORTED


def test_nothing_grows_with_finished_transactions() -> None:
    """Nothing is kept of committed transactions beyond their ledger, and of aborted ones while their entries exist."""
    state = TopicState()
    for number in range(1_000):
        txn, ledger = TxnID(0x8000, number), 1 + number // 100
        state.apply(Branch(txn), at(2 * number, ledger))
        state.apply(Marker(txn, frozenset({0})), at(2 * number + 1, ledger))
    state.apply(None, at(0, 99))
    assert (state.writing, state.marked, state.aborted, state.late) == ({}, {}, {}, {})
    state.apply(Branch(ONE), at(1, 99))
    state.apply(Marker(ONE, frozenset()), at(2, 99))
    state.without(99, forget_aborted=True)
    assert state.aborted == {Branch(ONE): AbortedBranch(at(1, 99), at(2, 99))}
    state.without(100, forget_aborted=False)  # a reader may still hold an entry of it
    assert state.aborted
    state.without(100, forget_aborted=True)
    assert not state.aborted


# -- over stores in memory ----------------------------------------------------------------------------


async def begin(world: World) -> TxnID:
    return (await world.coordinator.begin(Begin(60_000))).txn_id


def entry(text: str, branch: Branch | None = None) -> Append:
    return Append(encode_entry([EntryMessage(None, text.encode(), (), 0, 0)], "producer", branch), 1, branch)


async def send(world: World, text: str, txn: TxnID | None = None) -> Position:
    (appended,) = await world.buffer.append((entry(text, None if txn is None else Branch(txn)),))
    return appended.position


async def visible(world: World, isolation: Isolation = Isolation.READ_COMMITTED) -> list[str]:
    await world.buffer.max_read_position()
    found, after = [], EARLIEST
    while (page := await world.buffer.read(ReadRequest(after, Limit(2), isolation))).upto > after:
        found += [EntryView(one.data).message(0).value.decode() for one in page.entries]
        after = page.upto
    return found


async def test_markers_are_never_shown(harness: WorldHarness, world: World) -> None:
    """No isolation level shows a marker; a reader gets their positions, so that a cursor can pass them."""
    kept, dropped = await begin(world), await begin(world)
    await send(world, "kept", kept)
    await send(world, "dropped", dropped)
    await world.coordinator.end(End(kept, Action.COMMIT))
    await world.coordinator.end(End(dropped, Action.ABORT))
    assert await visible(world) == ["kept"]
    assert await visible(world, Isolation.READ_UNCOMMITTED) == ["kept", "dropped"]
    page = await world.buffer.read(ReadRequest(EARLIEST, Limit(10)))
    last = (await world.ledger.tail()).last_confirmed
    assert (len(page.skipped), page.skipped[-1], page.upto) == (3, last, last)


async def test_ending_on_a_sealed_topic_times_out(harness: WorldHarness, world: World) -> None:
    """The limit of this family: a transaction that wrote to a topic is decided after the topic was sealed, but
    has no effect there. Its end raises EndTransactionTimeout after ``end_timeout_ms``, and what it wrote stays
    undecided.
    """
    await send(world, "plain")
    txn = await begin(world)
    await send(world, "inside", txn)
    await world.ledger.seal()
    with pytest.raises(LedgerSealed):
        await send(world, "late", txn)
    ending = asyncio.ensure_future(world.coordinator.end(End(txn, Action.COMMIT)))
    await harness.settle()
    await harness.pass_time(harness.transactions.end_timeout_ms - 5_000)
    assert not ending.done()
    await harness.pass_time(5_000)
    with pytest.raises(EndTransactionTimeout) as late:
        await ending
    assert (late.value.txn_id, late.value.timeout_ms) == (txn, harness.transactions.end_timeout_ms)
    assert (await world.coordinator.describe(txn)).state is State.COMMITTED
    assert [one.txn_id for one in await world.coordinator.outstanding(None, Limit(9))] == [txn]
    assert await visible(world) == ["plain"]


@pytest.mark.parametrize("kind", [LogFamilyInShortLedgers])
async def test_snapshots_recover_the_same(harness: WorldHarness, world: World) -> None:
    """After any number of steps, reading from a snapshot gives the same state as reading everything."""
    still = await begin(world)
    expected: list[str] = []
    for number in range(12):
        txn = await begin(world)
        await send(world, f"{number}", txn)
        if number == 7:
            await send(world, "open", still)
        if number % 3 == 0:
            await world.ledger.roll()
        await world.coordinator.end(End(txn, Action.ABORT if number % 2 else Action.COMMIT))
        expected += [f"{number}"] if number % 2 == 0 and number < 7 else []
        async with harness.open() as fresh:
            assert await visible(fresh) == await visible(world) == expected
    snapshots = await world.ledgers.open(snapshots_name(world.buffer.segment, 1))
    assert sum(one.entries for one in await snapshots.ledgers(-1, 100)) <= 2
    await world.coordinator.end(End(still, Action.COMMIT))
    async with harness.open() as fresh:
        assert await visible(fresh) == ["0", "2", "4", "6", "open", "8", "10"]


async def test_a_snapshot_past_the_end_is_refused(harness: WorldHarness, world: World) -> None:
    """A topic that is shorter than its snapshot says was restored from a backup."""
    await Snapshots(world.ledgers, world.buffer.segment, 1, SnapshotOptions()).write(TopicState(Position(10**9, 5)), 0)
    with pytest.raises(StoreMismatch):
        await world.buffer.recover()


async def test_transactions_of_another_family_are_refused(harness: WorldHarness, world: World) -> None:
    """The decision of such a transaction is stored elsewhere, so nothing is appended."""
    before = await world.ledger.tail()
    with pytest.raises(TransactionDomainMismatch, match="metadata family"):
        await send(world, "x", TxnID(0, 1))
    assert await world.ledger.tail() == before


async def test_a_damaged_marker_is_not_passed_over(harness: WorldHarness, world: World) -> None:
    """A marker that cannot be read ends reading with an error that names it."""
    ended = Transaction(ONE, State.ABORTED, 0, 0)
    marker = marker_of(ended, 0)
    branch = Branch(ONE, MARKER_BRANCH)
    bad = encode_entry([EntryMessage(None, b"{", (), 0, 0)], EntryView(marker.data).producer, branch)
    tail = await world.ledger.tail()
    for data in (marker.data, bad):
        await world.ledger.append((Append(data, 1, Branch(ONE)),), tail.open_ledger_id)
    last = (await world.ledger.tail()).last_confirmed
    good, _ = await world.ledger.read(EntryRange(EARLIEST, last), Limit(9))
    assert read_entry(good, "topic") == Marker(ONE, frozenset())
    with pytest.raises(CorruptEntry, match="marker"):
        await world.buffer.recover()
