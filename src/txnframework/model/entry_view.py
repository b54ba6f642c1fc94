"""The stored form of an entry: one batch of messages of one producer, in columns.

Little-endian throughout. A header of 72 bytes is followed by the buffers below. Each buffer begins at a multiple of 8
bytes from the start of the entry, with zeros in between. So Arrow can wrap the buffers without copying them.

======  ====  =====================================================================
offset  size  header field
======  ====  =====================================================================
0       4     magic ``TXNE``
4       2     format version: 1, or 2 where a value is null
6       2     flags: 1 in a branch, 2 a message has a key, 4 a message has headers,
              8 a value is null
8       4     CRC-32 of the entry without these four bytes
12      4     size of the whole entry in bytes
16      4     n, number of messages, at least 1
20      4     m, number of headers of all messages
24      16    transaction id (zero: no branch)
40      8     branch number
48      4     size of the producer's name
52      16    sizes of the data of values, keys, header names, header values
68      4     zero
======  ====  =====================================================================

Buffers, in this order; those of a column that no message uses are empty:

0. where a value is null: validity of the values (n bits, lowest first, 1: not null); the data of a null is ignored
1. values: n+1 offsets (int32); sequence ids: n int64; published, ms since 1970: n int64
2. keys: validity (n bits, lowest first, 1: has a key); n+1 offsets
3. headers, a list of structs: n+1 offsets into the m headers; m+1 offsets of the names; m+1 of the values
4. the producer's name (UTF-8); data of values, keys, header names (UTF-8), header values

Version 2 was added for null values. An entry without any is stored as version 1, which earlier releases read; they
refuse version 2.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

from txnframework.errors import CorruptEntry, UnknownFormat, entry_named
from txnframework.model.entry_columns import BinaryColumn, Buffer, EntryColumns, HeaderColumns
from txnframework.model.ids import NUMBER_BITS, Branch, TxnID
from txnframework.model.positions import Position

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("txnframework reads entries in place and so needs a little-endian machine")

MAGIC: Final = b"TXNE"
VERSION: Final = 1
VERSION_WITH_NULLS: Final = 2
IN_BRANCH: Final = 1
HAS_KEYS: Final = 2
HAS_HEADERS: Final = 4
HAS_NULLS: Final = 8
PREFIX: Final = struct.Struct("<4sHH")
HEADER: Final = struct.Struct("<4sHHIIII16sQIIIIII")
CRC: Final = slice(PREFIX.size, PREFIX.size + 4)


class EntryMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of an entry; ``sequence_id`` is its producer's, ``published_ms`` counts from 1970."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    sequence_id: int
    published_ms: int


class EntryView:
    """
    An entry in memory: every buffer is a view of ``data``, and only single messages are copied.

    The constructor checks format, sizes and checksum: CorruptEntry names ``position`` and ``segment``, and
    UnknownFormat also the version. Offsets are views of int32, sequence ids and times of int64, the others of bytes.
    The buffers of keys are empty unless ``has_keys``, those of headers unless ``has_headers``, and ``values_validity``
    unless ``has_nulls``. ``data`` must not change while the view is used.

    ``checks_offsets`` False: the caller checks the offsets of the columns that it uses, as a library of columns does
    faster than Python.
    """

    __slots__ = (
        "branch",
        "count",
        "has_headers",
        "has_keys",
        "has_nulls",
        "header_count",
        "header_names_data",
        "header_names_offsets",
        "header_values_data",
        "header_values_offsets",
        "headers_offsets",
        "keys_data",
        "keys_offsets",
        "keys_validity",
        "position",
        "producer",
        "published_ms",
        "segment",
        "sequence_ids",
        "values_data",
        "values_offsets",
        "values_validity",
    )

    def __init__(
        self, data: Buffer, position: Position | None = None, segment: str = "", checks_offsets: bool = True
    ) -> None:
        entry = memoryview(data).cast("B").toreadonly()
        _check(entry, position, segment)
        _, _, flags, _, _, count, pairs, txn, number, *data_sizes, _ = HEADER.unpack_from(entry)
        self.position = position
        self.segment = segment
        self.count: int = count
        self.header_count: int = pairs
        self.has_keys = bool(flags & HAS_KEYS)
        self.has_headers = bool(flags & HAS_HEADERS)
        self.has_nulls = bool(flags & HAS_NULLS)
        self.branch: Branch | None = None
        if flags & IN_BRANCH:
            bits = int.from_bytes(txn, "little")
            self.branch = Branch(TxnID(bits >> NUMBER_BITS, bits & (1 << NUMBER_BITS) - 1), number)
        sizes = (
            (count + 7) // 8 * self.has_nulls,
            4 * (count + 1),
            8 * count,
            8 * count,
            (count + 7) // 8 * self.has_keys,
            4 * (count + 1) * self.has_keys,
            4 * (count + 1) * self.has_headers,
            4 * (pairs + 1) * self.has_headers,
            4 * (pairs + 1) * self.has_headers,
            *data_sizes,
        )
        if HEADER.size + sum(size + -size % 8 for size in sizes) != len(entry):
            raise CorruptEntry(position, "its counts do not add up to its size", segment)
        self.values_validity, *buffers = _cut(entry, sizes)
        self.values_offsets = buffers[0].cast("i")
        self.sequence_ids = buffers[1].cast("q")
        self.published_ms = buffers[2].cast("q")
        self.keys_validity = buffers[3]
        self.keys_offsets = buffers[4].cast("i")
        self.headers_offsets = buffers[5].cast("i")
        self.header_names_offsets = buffers[6].cast("i")
        self.header_values_offsets = buffers[7].cast("i")
        self.producer = self._text(buffers[8])
        self.values_data, self.keys_data, self.header_names_data, self.header_values_data = buffers[9:]
        if checks_offsets:
            self._check_offsets()

    @property
    def first_sequence(self) -> int:
        """The producer's sequence id of the first message."""
        return self.sequence_ids[0]

    @property
    def last_sequence(self) -> int:
        """The producer's sequence id of the last message, the highest of the entry."""
        return self.sequence_ids[-1]

    @property
    def contiguous(self) -> bool:
        """Whether every sequence id between the first and the last one is in the entry."""
        return self.last_sequence - self.first_sequence == self.count - 1

    def message(self, index: int) -> EntryMessage:
        """Return a copy of one message, counted from 0; IndexError if there is none."""
        if not 0 <= index < self.count:
            raise IndexError(f"message {index} of an entry with {self.count}")
        key: bytes | None = None
        if self.has_keys and self.keys_validity[index >> 3] >> (index & 7) & 1:
            key = _item(self.keys_offsets, self.keys_data, index)
        headers: tuple[tuple[str, bytes], ...] = ()
        if self.has_headers:
            pairs = range(self.headers_offsets[index], self.headers_offsets[index + 1])
            headers = tuple(self._header(pair) for pair in pairs)
        value: bytes | None = None
        if not self.has_nulls or self.values_validity[index >> 3] >> (index & 7) & 1:
            value = _item(self.values_offsets, self.values_data, index)
        return EntryMessage(key, value, headers, self.sequence_ids[index], self.published_ms[index])

    def messages(self) -> Iterator[EntryMessage]:
        """Return an iterator over copies of all messages, in order."""
        return map(self.message, range(self.count))

    def columns(self) -> EntryColumns:
        """Return the buffers as columns, without copying."""
        keys: BinaryColumn | None = None
        if self.has_keys:
            keys = BinaryColumn(self.keys_offsets, self.keys_data)
        headers: HeaderColumns | None = None
        if self.has_headers:
            names = BinaryColumn(self.header_names_offsets, self.header_names_data)
            values = BinaryColumn(self.header_values_offsets, self.header_values_data)
            headers = HeaderColumns(self.headers_offsets, names, values)
        values_column = BinaryColumn(self.values_offsets, self.values_data)
        return EntryColumns(
            self.count,
            values_column,
            self.sequence_ids,
            self.published_ms,
            keys,
            self.keys_validity if self.has_keys else None,
            headers,
            self.values_validity if self.has_nulls else None,
        )

    def _header(self, pair: int) -> tuple[str, bytes]:
        """Return a copy of one header, counted over all messages."""
        name = _item(self.header_names_offsets, self.header_names_data, pair)
        return self._text(name), _item(self.header_values_offsets, self.header_values_data, pair)

    def _text(self, raw: Buffer) -> str:
        """Return the bytes decoded as UTF-8."""
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptEntry(self.position, f"a name in it is not UTF-8: {error}", self.segment) from error

    def _check_offsets(self) -> None:
        """Refuse offsets that point outside of their data: a valid checksum does not prove who wrote them."""
        for offsets, end in (
            (self.values_offsets, len(self.values_data)),
            (self.keys_offsets, len(self.keys_data)),
            (self.headers_offsets, self.header_count),
            (self.header_names_offsets, len(self.header_names_data)),
            (self.header_values_offsets, len(self.header_values_data)),
        ):
            numbers = offsets.tolist() or [0, 0]
            if numbers[0] != 0 or numbers[-1] != end or numbers != sorted(numbers):
                raise CorruptEntry(self.position, "its offsets do not fit its data", self.segment)


def _check(entry: memoryview, position: Position | None, segment: str) -> None:
    """Check format, size and checksum; the version first, because another one may lay out the rest differently."""
    magic, version, flags = PREFIX.unpack_from(entry) if len(entry) >= PREFIX.size else (b"", 0, 0)
    if magic != MAGIC:
        raise CorruptEntry(position, "it does not begin as an entry does", segment)
    if version not in (VERSION, VERSION_WITH_NULLS):
        raise UnknownFormat(entry_named(position, segment), version)
    size = int.from_bytes(entry[CRC.stop : CRC.stop + 4], "little")
    if len(entry) < HEADER.size or size != len(entry):
        raise CorruptEntry(position, f"it has {len(entry)} bytes where it says {size}", segment)
    if zlib.crc32(entry[CRC.stop :], zlib.crc32(entry[: CRC.start])) != int.from_bytes(entry[CRC], "little"):
        raise CorruptEntry(position, "its checksum is wrong", segment)
    *_, count, _, txn, number, _, _, _, _, _, reserved = HEADER.unpack_from(entry)
    if flags & ~(IN_BRANCH | HAS_KEYS | HAS_HEADERS | HAS_NULLS) or reserved or not count:
        raise CorruptEntry(position, "it has unknown flags or no messages", segment)
    if version != (VERSION_WITH_NULLS if flags & HAS_NULLS else VERSION):
        raise CorruptEntry(position, "its flags are not those of its version", segment)
    if not flags & IN_BRANCH and (number or any(txn)):
        raise CorruptEntry(position, "it names a transaction and is in none", segment)


def _cut(entry: memoryview, sizes: tuple[int, ...]) -> list[memoryview]:
    """Return the buffers of these sizes, each of which begins at a multiple of 8 bytes."""
    buffers = []
    at = HEADER.size
    for size in sizes:
        buffers.append(entry[at : at + size])
        at += size + -size % 8
    return buffers


def _item(offsets: memoryview, data: memoryview, index: int) -> bytes:
    """Return a copy of one item of a column."""
    return bytes(data[offsets[index] : offsets[index + 1]])
