"""Conversion of entries to Arrow: whole columns, no Python work for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txnframework.model.entries import EntryView
from txnframework.model.entry_columns import Buffer
from txnframework.model.names import SegmentName
from txnframework_spark.errors import Unsupported

if TYPE_CHECKING:
    from txnframework.model.positions import Position
from txnframework_spark.source.times import times_ms

SCHEMA: Final = (
    "key binary, value binary, topic string, segment bigint,"
    " offset struct<ledger: bigint, entry: bigint, index: int>, timestamp timestamp"
)
"""The source's columns, as a Spark schema; ``.schema(...)`` may select a subset."""

HEADERS: Final = "headers array<struct<key: string, value: binary>>"
"""The column that ``includeHeaders`` adds."""

TRANSACTION: Final = "__txn string, __producer string, __sequence bigint"
"""The columns that ``includeTransaction`` adds: the transaction id or null, the producer and its sequence number."""

HEADER_FIELDS: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
_OFFSET_FIELDS: Final = [pa.field("ledger", pa.int64()), pa.field("entry", pa.int64()), pa.field("index", pa.int32())]


def columns_of(headers: bool, transaction: bool) -> str:
    """Return the columns of a load without an explicit schema."""
    return ", ".join((SCHEMA, *((HEADERS,) if headers else ()), *((TRANSACTION,) if transaction else ())))


class EntryArrays:
    """One entry's messages as Arrow arrays; columns that the schema lacks are not built."""

    def __init__(self, data: Buffer, position: Position, segment: SegmentName) -> None:
        self.view = EntryView(data, position, str(segment))
        self._position = position
        self._segment = segment

    def batch(self, schema: pa.Schema, kept: Sequence[int] | NDArray[np.intp] | None = None) -> pa.RecordBatch:
        """Return the columns of ``schema``; ``kept``: the indexes of the messages to return."""
        arrays = [_as_type(self._column(field.name), field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return batch if kept is None else batch.take(pa.array(kept, pa.int64()))

    def _column(self, name: str) -> pa.Array:
        view = self.view
        if name == "value":
            nulls = view.values_validity if view.has_nulls else None
            return _binary(view.count, view.values_offsets, view.values_data, nulls)
        if name == "key":
            if not view.has_keys:
                return pa.nulls(view.count, pa.binary())
            return _binary(view.count, view.keys_offsets, view.keys_data, view.keys_validity)
        if name == "__sequence":
            return _int64(view.count, view.sequence_ids)
        if name == "timestamp":
            return pa.array(times_ms(view.published_ms)).cast(pa.timestamp("ms", "UTC"))
        if name == "offset":
            return self._offsets()
        if name == "headers":
            return self._headers()
        constants = {
            "topic": pa.scalar(str(self._segment.topic), pa.string()),
            "segment": pa.scalar(self._segment.segment_id, pa.int64()),
            "__txn": pa.scalar(None if view.branch is None else str(view.branch.txn_id), pa.string()),
            "__producer": pa.scalar(view.producer, pa.string()),
        }
        if name not in constants:
            raise Unsupported(f"a txnframework source has no column {name}; it has {SCHEMA}, {HEADERS}, {TRANSACTION}")
        return pa.repeat(constants[name], view.count)

    def _offsets(self) -> pa.Array:
        count = self.view.count
        parts = [
            pa.repeat(pa.scalar(self._position.ledger_id, pa.int64()), count),
            pa.repeat(pa.scalar(self._position.entry_id, pa.int64()), count),
            pa.array(np.arange(count, dtype=np.int32)),
        ]
        return pa.StructArray.from_arrays(parts, fields=_OFFSET_FIELDS)

    def _headers(self) -> pa.Array:
        """Return the headers of each message; null for a message without headers, as in Spark's Kafka source."""
        view = self.view
        kind = pa.list_(pa.struct(HEADER_FIELDS))
        if not view.has_headers:
            return pa.nulls(view.count, kind)
        names = _binary(view.header_count, view.header_names_offsets, view.header_names_data).cast(pa.string())
        values = _binary(view.header_count, view.header_values_offsets, view.header_values_data)
        pairs = pa.StructArray.from_arrays([names, values], fields=HEADER_FIELDS)
        some = np.diff(np.frombuffer(view.headers_offsets, np.int32)) > 0
        mask = pa.py_buffer(np.packbits(some, bitorder="little"))
        return pa.Array.from_buffers(kind, view.count, [mask, pa.py_buffer(view.headers_offsets)], children=[pairs])


def _as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if column.type.equals(wanted) else column.cast(wanted)


def _binary(count: int, offsets: memoryview, data: memoryview, validity: memoryview | None = None) -> pa.Array:
    mask = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(pa.binary(), count, [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def _int64(count: int, numbers: memoryview) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers)])
