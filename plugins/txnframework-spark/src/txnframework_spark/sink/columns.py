"""Conversion of rows to an entry's columns: whole columns, no Python work for each row."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, CharType, DataType, StringType, StructType, VarcharType

from txnframework.model.entry_columns import BinaryColumn, Buffer, EntryColumns, HeaderColumns
from txnframework_spark.errors import Unsupported
from txnframework_spark.source.columns import HEADER_FIELDS

_BYTES: Final = (StringType, BinaryType, CharType, VarcharType)
_HEADERS: Final = pa.list_(pa.struct(HEADER_FIELDS))
_TYPES: Final = {"key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "headers": _HEADERS}


def check_sink_columns(schema: StructType, has_topic: bool) -> None:
    """Raise Unsupported if the schema cannot be written; the message says what to change."""
    names = schema.fieldNames()
    extra = [name for name in names if name not in _TYPES]
    if extra:
        raise Unsupported(
            f"a txnframework sink has no use for column {extra[0]}; it takes {', '.join(_TYPES)}: select those, for"
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

    :param sequences: the sequence id of each row, ascending.
    """
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
    )


def _nullable(column: pa.Array) -> tuple[BinaryColumn, Buffer | None]:
    """Return a binary array and its validity bits, None if it has no null."""
    if not column.null_count:
        return _binary(column), None
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    # The bytes behind a null are undefined, and are not stored.
    return _binary(pc.fill_null(column, b"")), np.packbits(valid, bitorder="little").data


def _binary(column: pa.Array) -> BinaryColumn:
    """Return a binary array's data with offsets that begin at 0, as entries require."""
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
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
    return HeaderColumns(offsets.data, _binary(names), _binary(values))
