"""Replay of a log: its records in order, from plain and batched entries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from txnframework.interfaces import IManagedLedger
from txnframework.model import EntryRange, Limit, Position
from txnframework_legacy.log.format import Place, decode_entry

PAGE = Limit(1_000)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record and its position."""

    place: Place
    data: bytes


class LedgerCount:
    """The number of records read from the ledger that was read last."""

    def __init__(self) -> None:
        self._ledger_id = -1
        self.records = 0

    def add(self, records: tuple[LogRecord, ...]) -> None:
        """Count the records of an entry that was read."""
        ledger_id = records[0].place.entry.ledger_id
        if ledger_id != self._ledger_id:
            self._ledger_id, self.records = ledger_id, 0
        self.records += len(records)

    def of(self, ledger_id: int) -> int:
        """Return the number of records read from a ledger; 0 if it is not the ledger that was read last."""
        return self.records if ledger_id == self._ledger_id else 0


async def read_records(ledger: IManagedLedger, after: Position, upto: Position) -> AsyncIterator[tuple[LogRecord, ...]]:
    """
    Yield the records after ``after`` up to ``upto``, in order; one tuple for each entry.

    :raises EntryTrimmed: entries of the range were trimmed.
    :raises UnknownFormat: an entry was written by another release.
    :raises CorruptEntry: an entry is damaged, or is not an entry of a log.
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
