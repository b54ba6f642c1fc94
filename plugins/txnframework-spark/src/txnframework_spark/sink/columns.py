"""Rows to an entry's columns: whole columns, no Python work for each row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from txnframework.model.entry_columns import BinaryColumn, Buffer, EntryColumns, HeaderColumns
from txnframework_spark.errors import Unsupported
from txnframework_spark.source.columns import HEADER_FIELDS


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
    column = rows.column("headers").cast(pa.list_(pa.struct(HEADER_FIELDS)))
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
