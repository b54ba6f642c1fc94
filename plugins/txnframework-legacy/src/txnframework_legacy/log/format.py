"""
The format of a log entry: ``[magic 2 bytes][version 2 bytes][...]``, big-endian; and the replay of a log.

The batch magic is followed by the records, each as its length (4 bytes) and its bytes. The plain magic is followed by
one record without a length. Another magic is corrupt data, and another version was written by another release. Both
raise an error: an entry that is skipped could contain a commit.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.interfaces import IManagedLedger
from txnframework.model import EntryRange, LedgerEntry, Limit, Position
from txnframework.model.records import UNREADABLE

T = TypeVar("T")

BATCH_MAGIC = 0x0E01
PLAIN_MAGIC = 0x0E02
VERSION = 1

_HEADER = struct.Struct(">HH")
_LENGTH = struct.Struct(">I")
RECORD_OVERHEAD = _LENGTH.size
"""The size of a record's length prefix in a batch, in bytes."""


@dataclass(frozen=True, slots=True, order=True)
class RecordPosition:
    """The position of a record: its entry, and its index among the entry's ``size`` records."""

    entry: Position
    index: int = 0
    size: int = 1


def encode_plain(record: bytes) -> bytes:
    """Return the entry that holds one record."""
    return _HEADER.pack(PLAIN_MAGIC, VERSION) + record


def encode_batch(records: Sequence[bytes]) -> bytes:
    """Return the entry that holds several records."""
    parts = [_HEADER.pack(BATCH_MAGIC, VERSION)]
    for record in records:
        parts += (_LENGTH.pack(len(record)), record)
    return b"".join(parts)


def decode_entry(entry: LedgerEntry, log: str) -> tuple[bytes, ...]:
    """
    Return the records of an entry of ``log``.

    :raises UnknownFormat: the entry has a version that this release does not know.
    :raises CorruptEntry: the entry is not an entry of a log, or is damaged.
    """
    data = entry.data
    if len(data) < _HEADER.size:
        raise CorruptEntry(entry.position, f"{len(data)} bytes are too few for an entry of a log", log)
    magic, version = _HEADER.unpack_from(data)
    if magic not in (BATCH_MAGIC, PLAIN_MAGIC):
        raise CorruptEntry(entry.position, f"it begins with {magic:#06x}, which no entry of a log does", log)
    if version != VERSION:
        raise UnknownFormat(f"entry {entry.position} of log {log}", version)
    if magic == PLAIN_MAGIC:
        return (data[_HEADER.size :],)
    return _records_of(entry, log)


def _records_of(entry: LedgerEntry, log: str) -> tuple[bytes, ...]:
    data, at = entry.data, _HEADER.size
    records: list[bytes] = []
    while at < len(data):
        start = at + _LENGTH.size
        stop = start + _LENGTH.unpack_from(data, at)[0] if start <= len(data) else len(data) + 1
        if stop > len(data):
            raise CorruptEntry(entry.position, f"record {len(records)} of the batch is cut off", log)
        records.append(data[start:stop])
        at = stop
    if not records:
        raise CorruptEntry(entry.position, "the batch is empty", log)
    return tuple(records)


PAGE = Limit(1_000)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record and its position."""

    position: RecordPosition
    data: bytes


def decode_record(decoder: msgspec.json.Decoder[T], record: LogRecord, log: str) -> T:
    """
    Return the content of a record of ``log``.

    :raises CorruptEntry: the data is not a valid record.
    """
    try:
        return decoder.decode(record.data)
    except UNREADABLE as error:
        raise CorruptEntry(record.position.entry, f"record {record.position.index}: {error}", log) from error


class LedgerCount:
    """The number of records read from the ledger that was read last."""

    def __init__(self) -> None:
        self._ledger_id = -1
        self.records = 0

    def add(self, records: tuple[LogRecord, ...]) -> None:
        """Count the records of an entry that was read."""
        ledger_id = records[0].position.entry.ledger_id
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
            yield tuple(
                LogRecord(RecordPosition(entry.position, index, size), data) for index, data in enumerate(records)
            )
        after = page[-1].position
