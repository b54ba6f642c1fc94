"""Entries to Arrow and back: whole columns, no Python work for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from txnframework.model.entries import EntryView
from txnframework.model.entry_columns import BinaryColumn, Buffer, EntryColumns, HeaderColumns
from txnframework.model.names import SegmentName
from txnframework_spark.errors import Unsupported

if TYPE_CHECKING:
    from txnframework.model.positions import Position

SCHEMA: Final = (
    "key binary, value binary, topic string, segment bigint, ledger bigint, entry bigint, index int,"
    " timestamp timestamp, producer string, sequence bigint"
)
"""Columns of the source in Spark's words; a subset of them may be asked for with ``.schema(...)``."""

HEADERS: Final = "headers array<struct<key: string, value: binary>>"
"""The column that ``includeHeaders`` adds."""

_HEADER_FIELDS: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]


class EntryArrays:
    """One entry's messages as Arrow arrays; those that no schema asks for are never made."""

    def __init__(self, data: Buffer, position: Position, segment: SegmentName) -> None:
        self.view = EntryView(data, position, str(segment))
        self._position = position
        self._segment = segment

    def batch(self, schema: pa.Schema, kept: Sequence[int] | None = None) -> pa.RecordBatch:
        """Return the columns of ``schema``; ``kept``: only these messages, by index."""
        arrays = [self._column(field.name).cast(field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return batch if kept is None else batch.take(pa.array(kept, pa.int32()))

    def _column(self, name: str) -> pa.Array:
        view = self.view
        if name == "value":
            return _binary(view.count, view.values_offsets, view.values_data)
        if name == "key":
            if not view.has_keys:
                return pa.nulls(view.count, pa.binary())
            return _binary(view.count, view.keys_offsets, view.keys_data, view.keys_validity)
        if name == "sequence":
            return _int64(view.count, view.sequence_ids)
        if name == "timestamp":
            return _int64(view.count, view.published_ms).cast(pa.timestamp("ms", "UTC"))
        if name == "index":
            return pa.array(range(view.count), pa.int32())
        if name == "headers":
            return self._headers()
        constants = {
            "topic": pa.scalar(str(self._segment.topic), pa.string()),
            "segment": pa.scalar(self._segment.segment_id, pa.int64()),
            "ledger": pa.scalar(self._position.ledger_id, pa.int64()),
            "entry": pa.scalar(self._position.entry_id, pa.int64()),
            "producer": pa.scalar(view.producer, pa.string()),
        }
        if name not in constants:
            raise Unsupported(f"a txnframework source has no column {name}; it has {SCHEMA}, {HEADERS}")
        return pa.repeat(constants[name], view.count)

    def _headers(self) -> pa.Array:
        view = self.view
        if not view.has_headers:
            empty = pa.StructArray.from_arrays([pa.array([], f.type) for f in _HEADER_FIELDS], fields=_HEADER_FIELDS)
            return pa.ListArray.from_arrays(pa.array([0] * (view.count + 1), pa.int32()), empty)
        names = _binary(view.header_count, view.header_names_offsets, view.header_names_data).cast(pa.string())
        values = _binary(view.header_count, view.header_values_offsets, view.header_values_data)
        pairs = pa.StructArray.from_arrays([names, values], fields=_HEADER_FIELDS)
        offsets = pa.Array.from_buffers(pa.int32(), view.count + 1, [None, pa.py_buffer(view.headers_offsets)])
        return pa.ListArray.from_arrays(offsets, pairs)


def _binary(count: int, offsets: memoryview, data: memoryview, validity: memoryview | None = None) -> pa.Array:
    mask = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(pa.binary(), count, [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def _int64(count: int, numbers: memoryview) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers)])


# -- rows to write ------------------------------------------------------------------------------------


def check_sink_columns(names: Sequence[str], has_topic: bool) -> None:
    """Refuse a schema that cannot be written, in one sentence."""
    known = ("key", "value", "topic", "headers")
    if "value" not in names:
        raise Unsupported("a txnframework sink needs a column value (string or binary)")
    if not has_topic and "topic" not in names:
        raise Unsupported("a txnframework sink needs the option topic or a column topic that names each row's topic")
    extra = [name for name in names if name not in known]
    if extra:
        raise Unsupported(f"a txnframework sink has no use for column {extra[0]}; it takes {', '.join(known)}")


def as_binary(column: pa.Array, name: str) -> pa.Array:
    """Return a string or binary column as binary with 32-bit offsets; Unsupported for other types."""
    kind = column.type
    if not (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        raise Unsupported(f"column {name} has type {kind}; cast it to string or binary")
    return column.cast(pa.binary())


def entry_columns(rows: pa.RecordBatch, first_sequence: pa.Array, published_ms: int) -> EntryColumns:
    """Return rows with columns value, and key and headers where there are any, as an entry's columns.

    ``first_sequence``: the sequence id of each row, growing. The rows own their memory from offset 0.
    """
    values = as_binary(rows.column("value"), "value")
    if values.null_count:
        raise Unsupported("column value has a null; a message's value may be empty but not null")
    keys: BinaryColumn | None = None
    validity: Buffer | None = None
    if "key" in rows.schema.names:
        column = as_binary(rows.column("key"), "key")
        if column.null_count < rows.num_rows:
            validity, keys = _parts(column)
    times = pa.repeat(pa.scalar(published_ms, pa.int64()), rows.num_rows)
    return EntryColumns(
        count=rows.num_rows,
        values=_parts(values)[1],
        sequence_ids=_numbers(first_sequence),
        published_ms=_numbers(times),
        keys=keys,
        keys_validity=validity,
        headers=_header_columns(rows),
    )


def _parts(column: pa.Array) -> tuple[Buffer | None, BinaryColumn]:
    """Return validity and data of a binary array that begins at 0; a copy where it does not."""
    if column.offset:
        column = column.take(pa.array(range(len(column)), pa.int64()))
    validity, offsets, data = column.buffers()
    mask = None if validity is None or not column.null_count else memoryview(validity)
    return mask, BinaryColumn(memoryview(offsets), b"" if data is None else memoryview(data))


def _numbers(column: pa.Array) -> Buffer:
    buffer = column.buffers()[1]
    return memoryview(buffer)[8 * column.offset :]


def _header_columns(rows: pa.RecordBatch) -> HeaderColumns | None:
    if "headers" not in rows.schema.names:
        return None
    column = rows.column("headers").cast(pa.list_(pa.struct(_HEADER_FIELDS)))
    column = pc.fill_null(column, pa.scalar([], column.type)) if column.null_count else column
    pairs = column.flatten()
    if not len(pairs):
        return None
    lengths = pc.list_value_length(column).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    names, values = pairs.field("key").cast(pa.binary()), pairs.field("value")
    if names.null_count or values.null_count:
        raise Unsupported("column headers has a null key or value; both may be empty but not null")
    return HeaderColumns(memoryview(offsets.buffers()[1]), _parts(names)[1], _parts(values)[1])
