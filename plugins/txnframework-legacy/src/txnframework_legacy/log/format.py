"""
The format of a log entry: ``[magic 2 bytes][version 2 bytes][...]``, big-endian.

The batch magic is followed by the records, each as its length (4 bytes) and its bytes. The plain magic is followed by
one record without a length. Another magic is corrupt data, and another version was written by another release. Both
raise an error: an entry that is skipped could contain a commit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from txnframework.errors import CorruptEntry, UnknownFormat
from txnframework.model import LedgerEntry, Position

BATCH_MAGIC = 0x0E01
PLAIN_MAGIC = 0x0E02
VERSION = 1

_HEADER = struct.Struct(">HH")
_LENGTH = struct.Struct(">I")
RECORD_OVERHEAD = _LENGTH.size
"""The size of a record's length prefix in a batch, in bytes."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
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
        raise CorruptEntry(entry.position, f"it begins with {magic:#06x}, as no entry of a log does", log)
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
