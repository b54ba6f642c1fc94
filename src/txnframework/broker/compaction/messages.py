"""The committed messages of a segment, by position or by commit time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from txnframework.broker.segments import OpenSegment
from txnframework.errors import (
    CommitOrderUnknown,
    CompactedInOtherOrder,
    EntryTrimmed,
    InvalidInput,
    TransactionNotFound,
)
from txnframework.interfaces import IManagedLedger, ITransactionCoordinator
from txnframework.model.compacted import CompactedEntry, decode_compacted
from txnframework.model.entries import EntryView
from txnframework.model.ids import TxnID
from txnframework.model.positions import EARLIEST, EntryRange, Limit, Position
from txnframework.model.reads import ReadRequest

Order = Literal["position", "commit"]

PAGE = Limit(100)
SORTED_ENTRIES_MAX = 1_000_000
"""The most entries of one segment that can be sorted by commit time: their positions are kept in memory."""


async def readable_end(opened: OpenSegment, from_: Position) -> Position:
    """
    Return the position up to which a segment may be read, at least ``from_``, which was readable before.

    For a moment this process may read less than another one, because an intent that was put late names an earlier
    position. The compacted part must never become shorter, or a reader would find the rest twice.
    """
    upto = await opened.buffer.max_read_position()
    while upto < from_:
        before, upto = upto, await opened.buffer.advanced(upto)
        if upto <= before:  # sealed and decided to its end: the compacted part ends no later
            return from_
    return upto


async def compacted_entries(ledger: IManagedLedger, after: Position = EARLIEST) -> AsyncGenerator[CompactedEntry, None]:
    """Return the entries of a compacted ledger, to which no process appends any more."""
    end = (await ledger.tail()).last_confirmed
    while entries := await ledger.read(EntryRange(after, end), PAGE):
        for entry in entries:
            yield decode_compacted(entry.data, entry.position, ledger.name)
        after = entries[-1].position


async def in_order_of_positions(
    opened: OpenSegment, after: Position, upto: Position, whole: bool = False
) -> AsyncGenerator[CompactedEntry, None]:
    """
    Return the entries between two positions that count; if the first ones were trimmed, those that are left.

    :raises CompactedInOtherOrder: the first ones were trimmed, and ``whole`` is set.
    """
    while after < upto:
        try:
            page = await opened.buffer.read(ReadRequest(after, PAGE))
        except EntryTrimmed as error:
            if whole:
                raise CompactedInOtherOrder(opened.name) from error
            (left,) = await opened.ledger.ledgers(-1, 1)
            after = Position(left.ledger_id, -1)
            continue
        for entry in page.entries:
            if entry.position <= upto:
                yield _whole(entry.data, entry.position, opened.name)
        if page.upto <= after:
            return
        after = page.upto


class CommitTimes:
    """
    The commit times of a segment's entries; for entries that were sent outside transactions, the times of sending.

    ``coordinators``: of the families that may have written to the segment; several if its topic has migrated.
    """

    def __init__(self, segment: str, coordinators: Sequence[ITransactionCoordinator]) -> None:
        self._segment = segment
        self._coordinators = {one.family: one for one in reversed(coordinators)}
        self._known: dict[TxnID, int] = {}

    async def of(self, view: EntryView) -> int:
        """
        Return the time of an entry that counts; entries with the same time are sorted by position.

        :raises CommitOrderUnknown: the outcome is not kept any more, or the segment is served without transactions.
        """
        if view.branch is None:
            return view.message(0).published_ms
        txn_id = view.branch.txn_id
        if txn_id not in self._known:
            coordinator = self._coordinators.get(txn_id.family)
            if coordinator is None:
                raise CommitOrderUnknown(self._segment, f"the {txn_id.family} family is served without transactions")
            try:
                described = await coordinator.describe(txn_id)
            except TransactionNotFound as error:
                raise CommitOrderUnknown(self._segment, f"transaction {txn_id} ended too long ago") from error
            self._known[txn_id] = described.finalized_ms or 0
        return self._known[txn_id]


async def in_order_of_commits(
    opened: OpenSegment, upto: Position, times: CommitTimes
) -> AsyncGenerator[CompactedEntry, None]:
    """
    Return all entries up to a position that count, sorted by commit time.

    Entries that were sent outside transactions are sorted by the time of sending. Entries with the same time are sorted
    by position. The times are those of the hosts that committed and sent, whose clocks may differ.

    :raises CommitOrderUnknown: an outcome is not kept any more, or the first messages were trimmed.
    """
    places: list[tuple[int, Position]] = []
    after = EARLIEST
    while after < upto:
        try:
            page = await opened.buffer.read(ReadRequest(after, PAGE))
        except EntryTrimmed as error:
            raise CommitOrderUnknown(opened.name, "its first messages were trimmed") from error
        for entry in page.entries:
            if entry.position <= upto:
                view = EntryView(entry.data, entry.position, opened.name)
                places.append((await times.of(view), entry.position))
        if len(places) > SORTED_ENTRIES_MAX:
            raise InvalidInput(f"{opened.name} has more than {SORTED_ENTRIES_MAX} entries; use the order of positions")
        if page.upto <= after:
            break
        after = page.upto
    for _, place in sorted(places):
        before = Position(place.ledger_id, place.entry_id - 1)
        (found,) = (await opened.buffer.read(ReadRequest(before, Limit(1)))).entries
        yield _whole(found.data, place, opened.name)


def _whole(data: bytes, position: Position, segment: str) -> CompactedEntry:
    view = EntryView(data, position, segment)
    return CompactedEntry(position, view.count, view.producer, view.branch, tuple(enumerate(view.messages())))
