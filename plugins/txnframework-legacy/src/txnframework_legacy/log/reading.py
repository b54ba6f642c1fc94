"""Replaying a log: records in order, however their entries were written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from txnframework.errors import EntryTrimmed
from txnframework.interfaces import IManagedLedger
from txnframework.model import EntryRange, Limit, Position
from txnframework_legacy.log.format import Place, decode_entry

PAGE = Limit(1_000)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record and where it stands."""

    place: Place
    data: bytes


async def read_records(ledger: IManagedLedger, after: Position, upto: Position) -> AsyncIterator[tuple[LogRecord, ...]]:
    """
    Yield the records of each entry behind ``after`` up to ``upto``, in order; one entry's at a time.

    What was trimmed meanwhile is passed over: it was needed no more.

    :raises UnknownFormat: an entry was written by another release.
    :raises CorruptEntry: an entry is damaged, or none of a log.
    """
    while after < upto:
        try:
            page = await ledger.read(EntryRange(after, upto), PAGE)
        except EntryTrimmed:
            (first, *_) = await ledger.ledgers(-1, 1)
            after = max(after, Position(first.ledger_id, -1))
            continue
        if not page:
            return
        for entry in page:
            records = decode_entry(entry, ledger.name)
            size = len(records)
            yield tuple(LogRecord(Place(entry.position, index, size), data) for index, data in enumerate(records))
        after = page[-1].position
