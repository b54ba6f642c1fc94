"""
Encoding of entries, and the names needed to read them: one batch of messages of one producer, in columns.

``model.entry_view`` documents the stored form.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Final

import msgspec

from txnframework.model.entry_columns import (
    BinaryColumn,
    Buffer,
    EntryColumns,
    HeaderColumns,
    exactly,
    rebased,
    trimmed,
    validity_bytes,
    validity_of,
)
from txnframework.model.entry_view import (
    CRC,
    HAS_HEADERS,
    HAS_KEYS,
    HAS_NULLS,
    HEADER,
    IN_BRANCH,
    MAGIC,
    VERSION,
    VERSION_WITH_NULLS,
    EntryMessage,
    EntryView,
)
from txnframework.model.ids import NUMBER_BITS, Branch

__all__ = [
    "ENTRY_BYTES_MAX",
    "BinaryColumn",
    "EntryColumns",
    "EntryMessage",
    "EntryView",
    "HeaderColumns",
    "encode_columns",
    "encode_entry",
    "slice_entry",
]

ENTRY_BYTES_MAX: Final = 2**31 - 8
"""The most that int32 offsets can address; producers keep their batches far below."""


def encode_entry(messages: Sequence[EntryMessage], producer: str, branch: Branch | None) -> bytes:
    """Return the entry with these messages; ValueError as from ``encode_columns``."""
    if not messages:
        raise ValueError("an entry holds at least one message")
    # Columns of Python values fit by construction, so they need not be checked like columns from outside.
    count = len(messages)
    numbers = [message.sequence_id for message in messages]
    if count > 1:
        _require_growing(numbers)
    values = [message.value for message in messages]
    keys = [message.key for message in messages]
    pairs = list(chain.from_iterable(message.headers for message in messages))
    try:
        buffers = _Buffers(
            count,
            array("q", numbers).tobytes(),
            array("q", [message.published_ms for message in messages]).tobytes(),
            _column_of(values),
            validity_of(values) or b"" if None in values else b"",
            _keys_of(keys) if keys.count(None) < count else (),
            _headers_of(messages, pairs) if pairs else (),
            len(pairs),
        )
    except OverflowError as error:
        raise ValueError(f"a number does not fit its column: {error}") from error
    return _assembled(buffers, producer, branch)


def _column_of(items: Sequence[bytes | None]) -> tuple[Buffer, Buffer]:
    """Return offsets and data of byte strings; OverflowError if the offsets do not fit."""
    present = [item or b"" for item in items]
    return array("i", accumulate(map(len, present), initial=0)).tobytes(), b"".join(present)


def _keys_of(keys: Sequence[bytes | None]) -> tuple[Buffer, ...]:
    """Return validity, offsets and data of the keys, of which at least one is not None."""
    count = len(keys)
    validity = validity_of(keys) if None in keys else None
    return (validity or ((1 << count) - 1).to_bytes((count + 7) // 8, "little"), *_column_of(keys))


def _headers_of(messages: Sequence[EntryMessage], pairs: Sequence[tuple[str, bytes]]) -> tuple[Buffer, ...]:
    """Return the five buffers of the headers; ``pairs`` are the headers of all messages."""
    offsets = array("i", accumulate((len(message.headers) for message in messages), initial=0)).tobytes()
    names, contents = [name.encode() for name, _ in pairs], [content for _, content in pairs]
    return (offsets, *_column_of(names), *_column_of(contents))


def _require_growing(numbers: list[int]) -> None:
    if numbers != sorted(set(numbers)):
        raise ValueError("the sequence ids of an entry must grow from message to message")


class _Buffers(msgspec.Struct, frozen=True, gc=False):
    """
    The checked buffers of an entry.

    ``values``: offsets and data. ``nulls``: the validity of the values, empty if no value is null. ``keys``: validity,
    offsets and data, empty if no message has a key. ``headers``: offsets, then offsets and data of names and of
    contents, empty if there are none.
    """

    count: int
    sequence_ids: Buffer
    published_ms: Buffer
    values: tuple[Buffer, Buffer]
    nulls: Buffer
    keys: tuple[Buffer, ...]
    headers: tuple[Buffer, ...]
    pairs: int


def encode_columns(columns: EntryColumns, producer: str, branch: Branch | None) -> bytes:
    """
    Return the entry with these columns; Python does no work for each message unless offsets must be shifted.

    Raises ValueError if there is no message, if buffers are too short or offsets decrease, or if the entry would be
    larger than ENTRY_BYTES_MAX. Also if the sequence ids do not grow from message to message: a ledger recognises a
    repeated entry by its first and its last one.
    """
    count = columns.count
    if count < 1:
        raise ValueError("an entry holds at least one message")
    sequence_ids = exactly(columns.sequence_ids, 8 * count, "sequence ids")
    if not columns.is_checked:
        _require_growing(sequence_ids.cast("q").tolist())
    headers, pairs = _header_buffers(columns.headers, count)
    buffers = _Buffers(
        count,
        sequence_ids,
        exactly(columns.published_ms, 8 * count, "publish times"),
        trimmed(columns.values, count, "values", is_checked=columns.is_checked),
        _nulls(columns.values_validity, count),
        _key_buffers(columns),
        headers,
        pairs,
    )
    return _assembled(buffers, producer, branch)


def _nulls(validity: Buffer | None, count: int) -> bytes:
    """Return the validity of the values; nothing if no value is null."""
    if validity is None:
        return b""
    bits = validity_bytes(validity, count, "values")
    return b"" if bits == validity_bytes(None, count, "values") else bits


def _key_buffers(columns: EntryColumns) -> tuple[Buffer, ...]:
    """Return validity, offsets and data of the keys; nothing if no message has a key."""
    if columns.keys is None:
        return ()
    validity = validity_bytes(columns.keys_validity, columns.count, "keys")
    return (
        (validity, *trimmed(columns.keys, columns.count, "keys", is_checked=columns.is_checked))
        if any(validity)
        else ()
    )


def _header_buffers(headers: HeaderColumns | None, count: int) -> tuple[tuple[Buffer, ...], int]:
    """Return the five buffers of the headers and their number; nothing if no message has a header."""
    if headers is None:
        return (), 0
    outer = exactly(headers.offsets, 4 * (count + 1), "headers offsets")
    offsets, start, stop = rebased(outer, "headers")
    if start == stop:
        return (), 0
    names = trimmed(headers.names, stop - start, "header names", start)
    values = trimmed(headers.values, stop - start, "header values", start)
    return (offsets, *names, *values), stop - start


def _assembled(entry: _Buffers, producer: str, branch: Branch | None) -> bytes:
    """Return header and buffers as one entry, with its checksum."""
    flags = (IN_BRANCH if branch else 0) | (HAS_KEYS if entry.keys else 0) | (HAS_HEADERS if entry.pairs else 0)
    flags |= HAS_NULLS if entry.nulls else 0
    validity, keys_offsets, keys_data = entry.keys or (b"",) * 3
    headers_offsets, names_offsets, names_data, contents_offsets, contents_data = entry.headers or (b"",) * 5
    values_offsets, values_data = entry.values
    data = (producer.encode(), values_data, keys_data, names_data, contents_data)
    sizes = tuple(map(len, data))
    parts: list[Buffer] = []
    for buffer in (
        entry.nulls,
        values_offsets,
        entry.sequence_ids,
        entry.published_ms,
        validity,
        keys_offsets,
        headers_offsets,
        names_offsets,
        contents_offsets,
        *data,
    ):
        if size := len(buffer):
            parts.append(buffer)
            if size % 8:
                parts.append(bytes(-size % 8))
    total = HEADER.size + sum(map(len, parts))
    if total > ENTRY_BYTES_MAX:
        raise ValueError(f"an entry of {total} bytes is larger than {ENTRY_BYTES_MAX}")
    txn, number = bytes(16), 0
    if branch is not None:
        txn = (branch.txn_id.coordinator << NUMBER_BITS | branch.txn_id.number).to_bytes(16, "little")
        number = branch.number
        if not 0 <= number < 1 << 64:
            raise ValueError(f"branch number {number} does not fit 64 bits")
    version = VERSION_WITH_NULLS if flags & HAS_NULLS else VERSION
    header = bytearray(HEADER.pack(MAGIC, version, flags, 0, total, entry.count, entry.pairs, txn, number, *sizes, 0))
    checksum = zlib.crc32(header[: CRC.start])
    for part in (header[CRC.stop :], *parts):
        checksum = zlib.crc32(part, checksum)
    header[CRC] = checksum.to_bytes(4, "little")
    return b"".join((header, *parts))


def slice_entry(data: Buffer, first: int, last: int) -> bytes:
    """
    Return an entry of the messages ``first`` to ``last`` of another entry, both included.

    Raises IndexError if there are no such messages. Used for a batch that is partly stored: the rest is sent as an
    entry of its own, by the same producer and branch.
    """
    view = EntryView(data)
    if not 0 <= first <= last < view.count:
        raise IndexError(f"messages {first} to {last} of an entry with {view.count}")
    count = last - first + 1
    columns = view.columns()
    keys, headers = columns.keys, columns.headers
    valid_keys, valid_values = (
        None if bits is None else validity_bytes(bits, count, "messages", first)
        for bits in (columns.keys_validity, columns.values_validity)
    )
    rest = EntryColumns(
        count,
        BinaryColumn(view.values_offsets[first:], view.values_data),
        view.sequence_ids[first:],
        view.published_ms[first:],
        keys and BinaryColumn(view.keys_offsets[first:], keys.data),
        valid_keys,
        headers and HeaderColumns(view.headers_offsets[first:], headers.names, headers.values),
        valid_values,
    )
    return encode_columns(rest, view.producer, view.branch)
