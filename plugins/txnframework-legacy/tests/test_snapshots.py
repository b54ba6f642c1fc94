"""Snapshots of the marker buffer, whole and in segments: recovering equal, bounded, trimmed with the data."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.interfaces import ILedgerStore
from txnframework.model import Append, Branch, Position, TxnID
from txnframework.testing import VirtualEnvironment
from txnframework_legacy.buffer.markers import Marker
from txnframework_legacy.buffer.snapshot_format import SegmentReference
from txnframework_legacy.buffer.snapshots import (
    AbortedSegments,
    SnapshotOptions,
    Snapshots,
    segments_name,
    snapshots_name,
)
from txnframework_legacy.buffer.state import AbortedBranch, TopicState
from txnframework_legacy.log.format import encode_plain
from txnframework_memory.space import MemorySpace

TOPIC = "persistent://public/default/orders"
WHOLE = SnapshotOptions(None, 300)
IN_SEGMENTS = SnapshotOptions(3, 300)
FORMS = pytest.mark.parametrize("form", [WHOLE, IN_SEGMENTS], ids=["whole", "segments"])


def over_ledgers(work: Callable[[ILedgerStore], Awaitable[None]]) -> None:
    async def main() -> None:
        space = MemorySpace(VirtualEnvironment())
        async with asyncio.timeout(60):
            await work(cast(ILedgerStore, await space.open_ledgers()))

    asyncio.run(main())


class History:
    """A topic that grows: entries and markers of some transactions, in ledgers of a few entries."""

    def __init__(self, seed: int) -> None:
        self.state = TopicState()
        self._random = random.Random(seed)
        self._next = Position(1, 0)
        self._txns = 0
        self._open: list[TxnID] = []

    def grow(self, steps: int) -> None:
        for _ in range(steps):
            choice = self._random.random()
            if choice < 0.2 or not self._open:
                self._txns += 1
                self._open.append(TxnID(0x8000, self._txns))
            txn = self._random.choice(self._open)
            if choice < 0.7:
                self._add(Branch(txn, self._random.choice((0, 0, 7))))
            else:
                self._open.remove(txn)
                self._add(Marker(txn, frozenset(self._random.choice(([0], [], [])))))
                if choice > 0.97:
                    self._add(Branch(txn))  # too late
            if self._random.random() < 0.15:
                self._next = Position(self._next.ledger_id + 1, 0)

    def _add(self, found: Branch | Marker) -> None:
        self.state.apply(found, self._next)
        self._next = Position(self._next.ledger_id, self._next.entry_id + 1)


def left(state: TopicState, first_ledger_id: int) -> dict[Branch, AbortedBranch]:
    return {branch: one for branch, one in state.aborted.items() if one.last.ledger_id >= first_ledger_id}


async def entries_of(ledgers: ILedgerStore, name: str) -> int:
    ledger = await ledgers.open(name)
    return sum(one.entries for one in await ledger.ledgers(-1, 10_000))


def dropped(number: int, ledger: int = 1) -> tuple[Branch, AbortedBranch]:
    at = Position(ledger, 2 * number)
    return Branch(TxnID(0x8000, number)), AbortedBranch(at, Position(ledger, 2 * number + 1))


@FORMS
@pytest.mark.parametrize("seed", range(5))
def test_what_is_read_is_what_was_written(form: SnapshotOptions, seed: int) -> None:
    """In any form, and from either process, recovery gives the same state as reading everything."""

    async def work(ledgers: ILedgerStore) -> None:
        history = History(seed)
        writers = [Snapshots(ledgers, TOPIC, 1, form) for _ in range(2)]
        chance = random.Random(seed)
        for _ in range(25):
            history.grow(chance.randrange(1, 30))
            await chance.choice(writers).write(history.state, 1)
            found = await Snapshots(ledgers, TOPIC, 1, WHOLE).last()
            assert found == history.state
            assert [*found.aborted] == [*history.state.aborted]

    over_ledgers(work)


@FORMS
def test_what_is_gone_is_trimmed(form: SnapshotOptions) -> None:
    """Snapshot data is trimmed with the topic's ledgers, and nothing remains when all are gone."""

    async def work(ledgers: ILedgerStore) -> None:
        history = History(3)
        snapshots = Snapshots(ledgers, TOPIC, 1, form)
        sizes: list[int] = []
        for _ in range(40):
            history.grow(60)
            first = history.state.upto.ledger_id - 10
            await snapshots.write(history.state, first)
            found = await Snapshots(ledgers, TOPIC, 1, WHOLE).last()
            assert found is not None
            assert left(found, first) == left(history.state, first)
            written = await entries_of(ledgers, snapshots_name(TOPIC, 1))
            if form is IN_SEGMENTS:
                written += await entries_of(ledgers, segments_name(TOPIC, 1))
            sizes.append(written)
        assert max(sizes[20:]) <= 2 * max(sizes[5:20])
        history.state.writing.clear()
        await snapshots.write(history.state, 10**6)
        found = await Snapshots(ledgers, TOPIC, 1, WHOLE).last()
        assert (found.aborted if found else None) == {}
        if form is IN_SEGMENTS:
            assert await entries_of(ledgers, segments_name(TOPIC, 1)) == 0

    over_ledgers(work)


@FORMS
def test_no_entry_is_larger_than_allowed(form: SnapshotOptions) -> None:
    """However many transactions were aborted, each entry has at most so many bytes, and they are read together."""

    async def work(ledgers: ILedgerStore) -> None:
        state = TopicState(Position(1, 999), aborted=dict(map(dropped, range(200))))
        await Snapshots(ledgers, TOPIC, 1, form).write(state, 1)
        for name in await ledgers.list_names("marker-", "", 10):
            for one in await (await ledgers.open(name)).ledgers(-1, 1_000):
                assert one.bytes <= one.entries * 300
        assert await Snapshots(ledgers, TOPIC, 1, WHOLE).last() == state

    over_ledgers(work)


def test_a_segment_is_written_once() -> None:
    """A snapshot in segments writes what was aborted since the last one, also when another process wrote that."""

    async def work(ledgers: ILedgerStore) -> None:
        state = TopicState(Position(1, 999), aborted=dict(map(dropped, range(30))))
        await Snapshots(ledgers, TOPIC, 1, SnapshotOptions(10)).write(state, 1)
        assert await entries_of(ledgers, segments_name(TOPIC, 1)) == 3
        state.aborted |= dict([dropped(30)])
        state.upto = Position(1, 1_000)
        await Snapshots(ledgers, TOPIC, 1, SnapshotOptions(10)).write(state, 1)
        assert await entries_of(ledgers, segments_name(TOPIC, 1)) == 3
        assert await Snapshots(ledgers, TOPIC, 1, WHOLE).last() == state

    over_ledgers(work)


def test_what_is_read_while_segments_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction found aborted while a segment is being written is in the snapshot, which marks it as read."""
    history = History(4)
    add = AbortedSegments.add

    async def read_on(self: AbortedSegments, aborted: list[tuple[Branch, AbortedBranch]]) -> SegmentReference:
        if len(history.state.aborted) < 100:
            history.grow(50)
        return await add(self, aborted)

    async def work(ledgers: ILedgerStore) -> None:
        history.grow(100)
        before = len(history.state.aborted)
        await Snapshots(ledgers, TOPIC, 1, IN_SEGMENTS).write(history.state, 1)
        assert len(history.state.aborted) > before
        assert await Snapshots(ledgers, TOPIC, 1, WHOLE).last() == history.state

    monkeypatch.setattr(AbortedSegments, "add", read_on)
    over_ledgers(work)


def test_forms_follow_each_other() -> None:
    """Either form goes on from the other, so it can be switched at any time."""

    async def work(ledgers: ILedgerStore) -> None:
        history = History(8)
        for form in (WHOLE, IN_SEGMENTS, WHOLE, IN_SEGMENTS):
            history.grow(80)
            await Snapshots(ledgers, TOPIC, 1, form).write(history.state, 1)
            assert await Snapshots(ledgers, TOPIC, 1, WHOLE).last() == history.state

    over_ledgers(work)


def test_who_is_behind_writes_nothing() -> None:
    """A process that has read less than what was written down leaves that there."""

    async def work(ledgers: ILedgerStore) -> None:
        ahead = TopicState(Position(2, 0), aborted=dict([dropped(1)]))
        await Snapshots(ledgers, TOPIC, 1, WHOLE).write(ahead, 1)
        await Snapshots(ledgers, TOPIC, 1, WHOLE).write(TopicState(Position(1, 5)), 1)
        assert await Snapshots(ledgers, TOPIC, 1, WHOLE).last() == ahead

    over_ledgers(work)


def test_a_segment_without_snapshot_goes_with_its_data() -> None:
    """The snapshot data of a process that died is trimmed when its entries are gone."""

    async def work(ledgers: ILedgerStore) -> None:
        await AbortedSegments(ledgers, segments_name(TOPIC, 1), 300).add([dropped(1, ledger=1)])
        snapshots = Snapshots(ledgers, TOPIC, 1, IN_SEGMENTS)
        state = TopicState(Position(2, 9), aborted=dict(dropped(number, ledger=2) for number in range(3)))
        await snapshots.write(state, 1)
        assert len(await (await ledgers.open(segments_name(TOPIC, 1))).ledgers(-1, 10)) == 2
        await snapshots.write(state, 2)
        assert len(await (await ledgers.open(segments_name(TOPIC, 1))).ledgers(-1, 10)) == 1
        assert await Snapshots(ledgers, TOPIC, 1, WHOLE).last() == state

    over_ledgers(work)


def test_what_cannot_be_read_is_not_passed_over() -> None:
    """An unknown format, a part that is missing and a segment that never was there each end in an error."""

    async def work(ledgers: ILedgerStore) -> None:
        ledger = await ledgers.create(snapshots_name(TOPIC, 1))
        for data, error in (
            (b"\x00\x02\x00\x00\x00\x01{}", UnknownFormat),
            (b"\x00\x01\x00\x00\x00\x02{}", CorruptEntry),
            (b"\x00\x01\x00\x01\x00\x02{}", CorruptEntry),
            (b"\x00\x01\x00\x00\x00\x01{}", CorruptEntry),
            (b"\x00", CorruptEntry),
        ):
            await ledger.roll()
            await ledger.append((Append(encode_plain(data)),), None)
            with pytest.raises(error):
                await Snapshots(ledgers, TOPIC, 1, WHOLE).last()
        state = TopicState(Position(1, 999), aborted=dict(map(dropped, range(3))))
        await ledger.roll()
        await ledgers.delete(snapshots_name(TOPIC, 1), None)
        await Snapshots(ledgers, TOPIC, 1, IN_SEGMENTS).write(state, 1)
        await ledgers.delete(segments_name(TOPIC, 1), None)
        with pytest.raises(CorruptEntry, match="but there is no entry"):
            await Snapshots(ledgers, TOPIC, 1, WHOLE).last()

    over_ledgers(work)
