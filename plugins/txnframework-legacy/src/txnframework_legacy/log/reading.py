"""Replaying a log: records in order, however their entries were written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from txnframework.interfaces import IManagedLedger
from txnframework.model import EntryRange, Limit, Position
from txnframework_legacy.log.format import Place, decode_entry

PAGE = Limit(1_000)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record and where it stands."""

    place: Place
    data: bytes


class LedgerCount:
    """How many records were read of the ledger that was read of last."""

    def __init__(self) -> None:
        self._ledger_id = -1
        self.records = 0

    def add(self, records: tuple[LogRecord, ...]) -> None:
        """An entry was read."""
        ledger_id = records[0].place.entry.ledger_id
        if ledger_id != self._ledger_id:
            self._ledger_id, self.records = ledger_id, 0
        self.records += len(records)

    def of(self, ledger_id: int) -> int:
        """Return how many that were, if it was this ledger."""
        return self.records if ledger_id == self._ledger_id else 0


async def read_records(ledger: IManagedLedger, after: Position, upto: Position) -> AsyncIterator[tuple[LogRecord, ...]]:
    """
    Yield the records of each entry behind ``after`` up to ``upto``, in order; one entry's at a time.

    :raises EntryTrimmed: entries of the range were there and are gone.
    :raises UnknownFormat: an entry was written by another release.
    :raises CorruptEntry: an entry is damaged, or none of a log.
    """
    while after < upto:
        page = await ledger.read(EntryRange(after, upto), PAGE)
        if not page:
            return
        for entry in page:
            records = decode_entry(entry, ledger.name)
            size = len(records)
            yield tuple(LogRecord(Place(entry.position, index, size), data) for index, data in enumerate(records))
        after = page[-1].position
