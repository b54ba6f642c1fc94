"""Rows as columns of entries: their types, their segments, and entries of bounded size.

All work is done on whole columns, without Python work for each row. Row hashes are those of
``txnframework.model.key_hashes``. Murmur3 processes a key in blocks of four bytes. As numpy arrays, all keys process
their first block together, then all keys with a second block, and so on. So the Python work grows with the longest key,
not with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, CharType, DataType, StringType, StructType, VarcharType

from txnframework.model.entry_columns import BinaryColumn, Buffer, EntryColumns, HeaderColumns
from txnframework.model.key_hashes import key_hash
from txnframework.model.layout import Layout, Segment
from txnframework.model.names import TopicName
from txnframework_spark.errors import Unsupported
from txnframework_spark.options.parser import parse_topic
from txnframework_spark.source.reader import HEADER_FIELDS

_BYTES: Final = (StringType, BinaryType, CharType, VarcharType)
_HEADERS: Final = pa.list_(pa.struct(HEADER_FIELDS))
_TYPES: Final = {"key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "headers": _HEADERS}


def check_sink_columns(schema: StructType, has_topic: bool) -> None:
    """Raise Unsupported if the schema cannot be written; the message says what to change."""
    names = schema.fieldNames()
    extra = [name for name in names if name not in _TYPES]
    if extra:
        raise Unsupported(
            f"a txnframework sink does not accept column {extra[0]}; it accepts {', '.join(_TYPES)}: select those, for"
            " example with to_json(struct(*)) as value"
        )
    if "value" not in names:
        raise Unsupported("a txnframework sink needs a column value (string or binary)")
    if not has_topic and "topic" not in names:
        raise Unsupported("a txnframework sink needs the option topic or a column topic that names each row's topic")
    for field in schema.fields:
        _check_type(field.name, field.dataType)


def _check_type(name: str, kind: DataType) -> None:
    found = kind.simpleString()
    if name in ("key", "value") and not isinstance(kind, _BYTES):
        raise Unsupported(f"column {name} has type {found}; cast it to string or binary")
    if name == "topic" and not isinstance(kind, StringType | CharType | VarcharType):
        raise Unsupported(f"column topic has type {found}; cast it to string")
    if name == "headers":
        pair = kind.elementType if isinstance(kind, ArrayType) else None
        fields = [field.name for field in pair.fields] if isinstance(pair, StructType) else []
        if fields != ["key", "value"]:
            raise Unsupported(f"column headers has type {found}; make it array<struct<key: string, value: binary>>")


def sink_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a checked schema with the types of an entry."""
    schema = pa.schema([pa.field(name, _TYPES[name]) for name in rows.schema.names])
    arrays = [rows.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def entry_columns(rows: pa.RecordBatch, sequences: npt.NDArray[np.int64], published_ms: int) -> EntryColumns:
    """Return rows from ``sink_rows``, or a slice of them, as an entry's columns.

    :param sequences: the sequence id of each row.
    :raises ValueError: the sequence ids do not ascend, or the offsets of a column decrease.
    """
    if (np.diff(sequences) <= 0).any():
        raise ValueError("the sequence ids of an entry must grow from message to message")
    keys: BinaryColumn | None = None
    valid_keys: Buffer | None = None
    if "key" in rows.schema.names and (column := rows.column("key")).null_count < rows.num_rows:
        keys, valid_keys = _nullable(column)
    values, valid_values = _nullable(rows.column("value"))
    return EntryColumns(
        count=rows.num_rows,
        values=values,
        sequence_ids=sequences.data,
        published_ms=np.full(rows.num_rows, published_ms, np.int64).data,
        keys=keys,
        keys_validity=valid_keys,
        headers=_header_columns(rows),
        values_validity=valid_values,
        is_checked=True,
    )


def _nullable(column: pa.Array) -> tuple[BinaryColumn, Buffer | None]:
    """Return a binary array and its validity bits, None if it has no null."""
    if not column.null_count:
        return _binary_column(column), None
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    # The bytes behind a null are undefined, and are not stored.
    return _binary_column(pc.fill_null(column, b"")), np.packbits(valid, bitorder="little").data


def _binary_column(column: pa.Array) -> BinaryColumn:
    """Return a binary array's data with offsets that begin at 0, as entries require."""
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    if (np.diff(offsets) < 0).any():
        raise ValueError("the offsets of a column decrease")
    first, last = int(offsets[0]), int(offsets[-1])
    data = b"" if data_buffer is None else memoryview(data_buffer)[first:last]
    return BinaryColumn((offsets - np.int32(first)).data, data)


def _header_columns(rows: pa.RecordBatch) -> HeaderColumns | None:
    if "headers" not in rows.schema.names:
        return None
    column = rows.column("headers")
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    if not lengths.any():
        return None
    # Flattening omits the values behind a null.
    pairs = column.flatten()
    names, values = pairs.field("key").cast(pa.binary()), pairs.field("value")
    if pairs.null_count or names.null_count or values.null_count:
        raise Unsupported("column headers has a null header, key or value; key and value may be empty but not null")
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return HeaderColumns(offsets.data, _binary_column(names), _binary_column(values))


Hashes = npt.NDArray[np.uint16]
_Words = npt.NDArray[np.uint32]
_Places = npt.NDArray[np.int64]

_SEQUENCE_BYTES: Final = 8
_COLUMN_BYTES_MAX: Final = 256
"""Longer keys are hashed individually: many blocks for a few rows would cost more."""

_REST_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)


def key_hashes(keys: pa.Array) -> Hashes:
    """Return ``key_hash`` of each key of a binary array; the value for a null key is undefined."""
    count = len(keys)
    _, offsets_buffer, data_buffer = keys.buffers()
    if not count:
        return np.zeros(0, np.uint16)
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    # The last word of a key is read whole, so the data is padded.
    data = np.zeros(int(offsets[-1]) + 4, np.uint8)
    if data_buffer is not None:
        data[:-4] = np.frombuffer(data_buffer, np.uint8, int(offsets[-1]))
    starts, lengths = offsets[:-1], np.diff(offsets)
    found = _of_columns(data, starts, np.where(lengths > _COLUMN_BYTES_MAX, 0, lengths))
    for row in np.flatnonzero(lengths > _COLUMN_BYTES_MAX):
        found[row] = key_hash(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return found


def keyless_hashes(producer: str, sequences: _Places) -> Hashes:
    """Return ``keyless_hash`` of each sequence id."""
    name = producer.encode()
    numbers = np.ascontiguousarray(sequences, "<i8").view("<u4").reshape(-1, 2)
    hashes = _mixed(_mixed(np.zeros(len(numbers), np.uint32), numbers[:, 0]), numbers[:, 1])
    padded = np.frombuffer(name + bytes(-len(name) % 4), "<u4")
    whole = len(name) // 4
    for word in padded[:whole]:
        hashes = _mixed(hashes, np.full(1, word, np.uint32))
    if len(name) % 4:
        hashes = hashes ^ _scrambled(padded[whole:].astype(np.uint32))
    return _finished(hashes, np.full(1, _SEQUENCE_BYTES + len(name), np.uint32))


def _of_columns(data: npt.NDArray[np.uint8], starts: _Places, lengths: _Places) -> Hashes:
    # One word from each byte offset, so that keys of any alignment can be read.
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    hashes = np.zeros(len(starts), np.uint32)
    blocks = lengths >> 2
    longest = int(blocks.max(initial=0))
    everywhere = int(blocks.min(initial=0))
    for block in range(everywhere):
        hashes = _mixed(hashes, words[starts + 4 * block])
    left = np.arange(len(starts))
    for block in range(everywhere, longest):
        left = left[blocks[left] > block]
        hashes[left] = _mixed(hashes[left], words[starts[left] + 4 * block])
    rest = words[starts + 4 * blocks] & _REST_MASKS[lengths & 3]
    return _finished(hashes ^ _scrambled(rest), lengths.astype(np.uint32))


def _scrambled(words: _Words) -> _Words:
    words = words * np.uint32(0xCC9E2D51)
    words = (words << np.uint32(15)) | (words >> np.uint32(17))
    return words * np.uint32(0x1B873593)


def _mixed(hashes: _Words, words: _Words) -> _Words:
    hashes = hashes ^ _scrambled(words)
    hashes = (hashes << np.uint32(13)) | (hashes >> np.uint32(19))
    return hashes * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(hashes: _Words, lengths: _Words) -> Hashes:
    hashes = hashes ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (hashes ^ (hashes >> np.uint32(16))).astype(np.uint16)


ROW: Final = "_row"
"""The column that numbers a task's rows."""


def group_by_topic(rows: pa.RecordBatch, topic: TopicName | None) -> Iterator[tuple[TopicName, pa.RecordBatch]]:
    """Yield the rows by topic, in order within each; ``topic`` None: the column ``topic`` names it."""
    if topic is not None:
        yield topic, rows
        return
    given = rows.column("topic")
    if given.null_count:
        raise Unsupported("column topic contains a null, and the option topic is not set")
    named = pc.dictionary_encode(given)
    columns = rows.select([name for name in rows.schema.names if name != "topic"])
    option_texts = [parse_topic("column topic", name) for name in named.dictionary.to_pylist()]
    topics = list(dict.fromkeys(option_texts))
    places = np.array([topics.index(name) for name in option_texts], np.int64)
    for place, part in _grouped(columns, places[named.indices.to_numpy()], len(topics)):
        yield topics[place], part


def group_by_segment(rows: pa.RecordBatch, layout: Layout, producer: str) -> Iterator[tuple[Segment, pa.RecordBatch]]:
    """Yield the rows by the segment that their keys hash to, in order within each."""
    active = sorted(layout.active(), key=lambda segment: segment.start)
    if len(active) == 1:
        yield active[0], rows
        return
    starts = np.array([segment.start for segment in active])
    places = np.searchsorted(starts, row_hashes(rows, producer), side="right") - 1
    for place, part in _grouped(rows, places, len(active)):
        yield active[place], part


def row_hashes(rows: pa.RecordBatch, producer: str) -> Hashes:
    """Return the hash of each row: of its key or, without a key, of the producer and the row's number."""
    numbers = rows.column(ROW).to_numpy()
    keys = rows.column("key") if "key" in rows.schema.names else None
    if keys is None or keys.null_count == len(keys):
        return keyless_hashes(producer, numbers)
    hashes = key_hashes(keys)
    if keys.null_count:
        missing = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        hashes[missing] = keyless_hashes(producer, numbers[missing])
    return hashes


def cut(rows: pa.RecordBatch, messages_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Cut rows into entries of at most so many messages and bytes of key and value; a larger row gets its own entry."""
    ends = np.cumsum(row_sizes(rows))
    first = 0
    while first < rows.num_rows:
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + bytes_max, side="right"))
        last = min(max(fitting, first + 1), first + messages_max, rows.num_rows)
        yield rows.slice(first, last - first)
        first = last


def row_sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the size of each row in bytes, key plus value."""
    columns = [rows.column(name) for name in ("key", "value") if name in rows.schema.names]
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in columns:
        lengths = pc.binary_length(column)
        sizes += (pc.fill_null(lengths, 0) if column.null_count else lengths).to_numpy()
    return sizes


def _grouped(rows: pa.RecordBatch, places: npt.NDArray[np.int64], count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each place that has any: sorted once, then sliced."""
    counts = np.bincount(places, minlength=count)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        yield int(present[0]), rows
        return
    # Stable, so rows keep their order; numpy sorts 16-bit integers by a radix sort.
    narrow = places.astype(np.int16) if count < 1 << 15 else places
    together = rows.take(pa.array(np.argsort(narrow, kind="stable")))
    first = 0
    for place in present:
        yield int(place), together.slice(first, int(counts[place]))
        first += int(counts[place])
