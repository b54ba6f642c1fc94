"""Segments of a topic's aborted set: each is written once, and trimmed when the entries of its branches are trimmed."""

from __future__ import annotations

from txnframework.errors import CorruptEntry, EntryTrimmed, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Append, Branch, LedgerSummary, Position
from txnframework_legacy.beside import ABORTED_SEGMENTS, beside
from txnframework_legacy.buffer.documents import read_document
from txnframework_legacy.buffer.snapshot_format import (
    AbortedSegment,
    SegmentReference,
    decode_segment,
    documents_of,
    encode,
)
from txnframework_legacy.buffer.states import Dropped

LEDGERS_PAGE = 100


def segments_name(segment: str, life: int) -> str:
    """Return the name of the ledger that holds the segments of a topic's aborted set."""
    return beside(ABORTED_SEGMENTS, segment, life)


class AbortedSegments:
    """
    The segments of one topic's aborted set, of all processes, each in a ledger of its own.

    A segment is trimmed when all entries of its branches are trimmed, whether or not a snapshot refers to it. So no
    process can trim a segment that another process still needs. A reference to a trimmed segment means no branches.
    """

    def __init__(self, ledgers: ILedgerStore, name: str, entry_bytes_max: int) -> None:
        self._ledgers = ledgers
        self._name = name
        self._entry_bytes_max = entry_bytes_max
        self._ledger: IManagedLedger | None = None

    async def add(self, aborted: list[tuple[Branch, Dropped]]) -> SegmentReference:
        """Write a segment and return the reference to it."""
        entries = tuple(map(Append, encode(AbortedSegment(aborted=documents_of(aborted)), self._entry_bytes_max)))
        self._ledger = self._ledger or await self._ledgers.create(self._name)
        await self._ledger.roll()
        appended = await self._ledger.append(entries, None)
        return SegmentReference(
            at=str(appended[-1].position),
            upto=str(aborted[-1][1].marker),
            last_ledger=max(one.last.ledger_id for _, one in aborted),
        )

    async def read(self, reference: SegmentReference) -> dict[Branch, Dropped]:
        """
        Return the branches of a segment; an empty dictionary if it was trimmed.

        :raises CorruptEntry: the segment was never stored.
        """
        at = Position.parse(reference.at)
        ledger = await self._opened()
        try:
            entries = [] if ledger is None else await read_document(ledger, at)
        except EntryTrimmed:
            return {}
        if not entries:
            raise CorruptEntry(at, "a snapshot refers to it, and nothing stands there", self._name)
        return decode_segment(entries, self._name)

    async def trim(self, first_ledger_id: int) -> None:
        """Trim the segments whose branches have no entry in the topic's ledger ``first_ledger_id`` or a later one."""
        ledger = await self._opened()
        if ledger is None:
            return
        below = -1
        for one in await ledger.ledgers(-1, LEDGERS_PAGE):
            if not one.entries or await self._last_ledger(ledger, one) >= first_ledger_id:
                break
            if one.ledger_id == (await ledger.tail()).open_ledger_id:
                await ledger.roll()
                # Another process may have added a segment since the check. The closed ledger gets no more, so check
                # again.
                (closed,) = await ledger.ledgers(one.ledger_id - 1, 1)
                if await self._last_ledger(ledger, closed) >= first_ledger_id:
                    break
            below = one.ledger_id + 1
        if below > 0:
            await ledger.trim(below, frozenset())

    async def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            await self._ledger.close()

    async def _opened(self) -> IManagedLedger | None:
        try:
            self._ledger = self._ledger or await self._ledgers.open(self._name)
        except LedgerNotFound:
            return None
        return self._ledger

    async def _last_ledger(self, ledger: IManagedLedger, summary: LedgerSummary) -> int:
        """Return the last ledger of the topic with an entry of a branch in these segments; -1 if there is none."""
        found, at = -1, Position(summary.ledger_id, summary.entries - 1)
        while at.entry_id >= 0:
            try:
                entries = await read_document(ledger, at)
            except EntryTrimmed:
                return found  # trimmed by another process
            aborted = decode_segment(entries, self._name)
            found = max([found, *(one.last.ledger_id for one in aborted.values())])
            at = Position(at.ledger_id, at.entry_id - len(entries))
        return found
