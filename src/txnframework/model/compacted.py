"""
The stored form of an entry of a compacted ledger: the kept messages of a segment's entry, and its position.

::

    magic    4 bytes   b"TXCP"
    version  1 byte    1
    header   4 bytes   length of what follows, little-endian, then JSON: position of the entry in the segment, number of
                       its messages, and which of them were kept
    entry              the kept messages, as ``model.entries`` stores them
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from txnframework.errors import CorruptEntry, UnknownFormat, entry_named
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.entry_columns import Buffer
from txnframework.model.ids import Branch
from txnframework.model.positions import Position, PositionText
from txnframework.model.records import UNREADABLE

MAGIC = b"TXCP"
VERSION = 1
_FIXED = len(MAGIC) + 1 + 4


@dataclass(frozen=True, slots=True)
class CompactedEntry:
    """
    The kept messages of an entry at ``position``, with their batch indexes; the entry had ``batch_size`` messages.
    """

    position: Position
    batch_size: int
    producer: str
    branch: Branch | None
    messages: tuple[tuple[int, EntryMessage], ...]


class _Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    position: PositionText
    size: int
    indexes: list[int]


def encode_compacted(entry: CompactedEntry) -> bytes:
    """Return the stored form; at least one message must be kept."""
    indexes = [index for index, _ in entry.messages]
    data = encode_entry([message for _, message in entry.messages], entry.producer, entry.branch)
    return _stored(_Header(position=str(entry.position), size=entry.batch_size, indexes=indexes), data)


def encode_whole(data: Buffer, position: Position, messages: int) -> bytes:
    """Return the stored form of an entry whose messages are all kept, without decoding it."""
    return _stored(_Header(position=str(position), size=messages, indexes=list(range(messages))), data)


def _stored(header: _Header, data: Buffer) -> bytes:
    encoded = msgspec.json.encode(header)
    return b"".join((MAGIC, bytes((VERSION,)), len(encoded).to_bytes(4, "little"), encoded, data))


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """The parts of a stored copy: ``data`` is an entry with the messages at ``indexes`` of the original."""

    position: Position
    batch_size: int
    indexes: tuple[int, ...]
    data: bytes

    @property
    def is_whole(self) -> bool:
        """Whether all messages were kept, so that ``data`` may be that of the original entry, byte by byte."""
        return len(self.indexes) == self.batch_size


def split_compacted(data: bytes, at: Position, ledger: str = "") -> StoredCopy:
    """Take the entry at ``at`` of a compacted ``ledger`` apart; CorruptEntry or UnknownFormat if it is not one."""
    if data[: len(MAGIC)] != MAGIC or len(data) < _FIXED:
        raise CorruptEntry(at, "it is not an entry of a compacted ledger", ledger)
    if data[len(MAGIC)] != VERSION:
        raise UnknownFormat(entry_named(at, ledger or "a compacted ledger"), data[len(MAGIC)])
    end = _FIXED + int.from_bytes(data[len(MAGIC) + 1 : _FIXED], "little")
    try:
        header = msgspec.json.decode(data[_FIXED:end], type=_Header)
    except UNREADABLE as error:
        raise CorruptEntry(at, str(error), ledger) from error
    return StoredCopy(Position.parse(header.position), header.size, tuple(header.indexes), data[end:])


def decode_compacted(data: bytes, at: Position, ledger: str = "") -> CompactedEntry:
    """Return the entry at ``at`` of a compacted ``ledger``; CorruptEntry or UnknownFormat if it is not one."""
    stored = split_compacted(data, at, ledger)
    indexes = list(stored.indexes)
    view = EntryView(stored.data, at, ledger)
    if view.count != len(indexes):
        raise CorruptEntry(at, f"it names {len(indexes)} messages and holds {view.count}", ledger)
    if indexes != sorted(set(indexes)) or not 0 <= indexes[0] <= indexes[-1] < stored.batch_size:
        raise CorruptEntry(at, f"its indexes are not ascending numbers below {stored.batch_size}", ledger)
    messages = tuple(zip(indexes, view.messages(), strict=True))
    return CompactedEntry(stored.position, stored.batch_size, view.producer, view.branch, messages)
