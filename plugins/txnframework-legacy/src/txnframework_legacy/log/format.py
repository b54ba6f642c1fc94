"""
What an entry of a log looks like: ``[magic 2 bytes][version 2 bytes][...]``, big-endian.

Behind the batch magic stand the records, each as its length (4 bytes) and its bytes; behind the plain magic one record,
as it is. What begins with neither is not an entry of a log, and what has another version was written by another
release: both are errors and never passed over, because what is passed over may be somebody's commit.
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
"""How many bytes a record takes in a batch besides its own."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a record stands: the entry, and its place among the entry's ``size`` records."""

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

    :raises UnknownFormat: it has a version that this release does not know.
    :raises CorruptEntry: it is not an entry of a log, or it is damaged.
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
