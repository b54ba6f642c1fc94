"""Entries become Arrow batches and rows become entries, with nothing lost on the way."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from txnframework.errors import CorruptEntry
from txnframework.model.entries import EntryMessage, EntryView, encode_columns, encode_entry
from txnframework.model.entry_view import CRC
from txnframework.model.ids import Branch, TxnID
from txnframework.model.names import SegmentName
from txnframework.model.positions import Position
from txnframework_spark.errors import Unsupported
from txnframework_spark.sink.rows import check_sink_columns, entry_columns, sink_rows
from txnframework_spark.source.reader import EntryArrays

SEGMENT = SegmentName.parse("segment://public/default/in/0000-ffff-0")
TOPIC = "topic://public/default/in"
SOURCE = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("offset", StructType().add("ledger", LongType()).add("entry", LongType()).add("index", IntegerType()))
    .add("timestamp", TimestampType())
    .add("__txn", StringType())
    .add("__producer", StringType())
    .add("__sequence", LongType())
    .add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
)


def entry() -> bytes:
    messages = [
        EntryMessage(b"k", b"one", (("h", b"x"),), 4, 1_000),
        EntryMessage(None, b"", (), 7, 2_000),
        EntryMessage(b"", b"three", (("a", b""), ("b", b"2")), 8, 3_000),
    ]
    return encode_entry(messages, "p", Branch(TxnID(0, 1), 5))


def test_an_entry_becomes_the_columns_that_spark_expects() -> None:
    schema = to_arrow_schema(SOURCE, timezone="UTC")
    batch = EntryArrays(entry(), Position(2, 3), SEGMENT, TOPIC).batch(schema)
    assert batch.schema.equals(schema)
    rows = batch.to_pylist()
    assert [row["key"] for row in rows] == [b"k", None, b""]
    assert [row["value"] for row in rows] == [b"one", b"", b"three"]
    assert {row["topic"] for row in rows} == {"topic://public/default/in"}
    assert [row["offset"] for row in rows] == [{"ledger": 2, "entry": 3, "index": index} for index in range(3)]
    assert {row["__txn"] for row in rows} == {str(TxnID(0, 1))}
    assert {row["__producer"] for row in rows} == {"p"}
    assert [row["__sequence"] for row in rows] == [4, 7, 8]
    assert [row["timestamp"].timestamp() for row in rows] == [1, 2, 3]
    headers = [row["headers"] and [(pair["key"], pair["value"]) for pair in row["headers"]] for row in rows]
    assert headers == [[("h", b"x")], None, [("a", b""), ("b", b"2")]]


def test_headers_that_no_message_has_are_null() -> None:
    """As Spark's Kafka source has it, whether or not other messages of the entry have headers."""
    schema = to_arrow_schema(SOURCE, timezone="UTC")
    data = encode_entry([EntryMessage(None, b"", (), number, 0) for number in range(9)], "p", None)
    assert EntryArrays(data, Position(2, 3), SEGMENT, TOPIC).batch(schema).column("headers").null_count == 9


def test_null_values_become_nulls_without_a_copy() -> None:
    """Nulls and empty values are distinct; the column shares the buffers of the entry."""
    values = [None, b"", b"1", None, *[b"x"] * 9, None]
    data = encode_entry([EntryMessage(None, value, (), number, 0) for number, value in enumerate(values)], "p", None)
    arrays = EntryArrays(data, Position(2, 3), SEGMENT, TOPIC)
    batch = arrays.batch(to_arrow_schema(StructType().add("value", BinaryType()), timezone="UTC"))
    column = batch.column("value")
    assert (column.to_pylist(), column.null_count) == (values, 3)
    assert arrays.batch(batch.schema, kept=[2, 3]).column("value").to_pylist() == [b"1", None]
    begin = pa.py_buffer(data).address
    assert all(begin <= buffer.address < begin + len(data) for buffer in column.buffers())


@pytest.mark.parametrize("column", ["value", "key", "headers"])
@pytest.mark.parametrize("offsets", [(0, 1 << 20), (4, 0), (-1, 4)])
def test_offsets_outside_of_their_data_are_refused(column: str, offsets: tuple[int, int]) -> None:
    """A valid checksum does not prove that a library of this framework wrote the entry."""
    messages = [EntryMessage(b"keys", b"text", (("name", b"text"),), number, 0) for number in range(2)]
    data = bytearray(encode_entry(messages, "p", None))
    view = EntryView(data)
    for buffer in {
        "value": [view.values_offsets],
        "key": [view.keys_offsets],
        "headers": [view.headers_offsets, view.header_names_offsets, view.header_values_offsets],
    }[column]:
        broken = bytearray(data)
        at = pa.py_buffer(buffer).address - pa.py_buffer(data).address
        broken[at + 4 : at + 12] = np.array(offsets, "<i4").tobytes()
        broken[CRC] = zlib.crc32(broken[CRC.stop :], zlib.crc32(broken[: CRC.start])).to_bytes(4, "little")
        schema = to_arrow_schema(StructType([SOURCE[column]]), timezone="UTC")
        with pytest.raises(CorruptEntry, match="2:3"):
            EntryArrays(broken, Position(2, 3), SEGMENT, TOPIC).batch(schema)


def test_messages_that_are_done_are_left_out() -> None:
    schema = to_arrow_schema(SOURCE, timezone="UTC")
    batch = EntryArrays(entry(), Position(2, 3), SEGMENT, TOPIC).batch(schema, kept=[1])
    assert [row["value"] for row in batch.to_pylist()] == [b""]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_rows_become_the_same_messages() -> None:
    """Slices, nulls among keys, strings for binaries and missing headers are all ordinary."""
    table = {
        "key": pa.array(["skipped", "k", None, "", "left"], pa.string()),
        "value": pa.array([b"skipped", b"one", b"", b"three", b"left"], pa.binary()),
        "headers": pa.array([[("s", b"")], [("h", b"x")], None, [("a", b""), ("b", b"2")], [("l", b"")]], HEADERS),
    }
    rows = sink_rows(pa.RecordBatch.from_pydict(table)).slice(1, 3)
    columns = entry_columns(rows, np.array([4, 7, 8]), 99)
    view = EntryView(encode_columns(columns, "p", None))
    found = list(view.messages())
    assert [message.key for message in found] == [b"k", None, b""]
    assert [message.value for message in found] == [b"one", b"", b"three"]
    assert [message.headers for message in found] == [(("h", b"x"),), (), (("a", b""), ("b", b"2"))]
    assert [message.sequence_id for message in found] == [4, 7, 8]
    assert {message.published_ms for message in found} == {99}


def test_columns_that_arrow_checked_are_the_same_entry() -> None:
    rows = sink_rows(pa.RecordBatch.from_pydict({"key": ["a", None, "ccc"], "value": ["1", "", "333"]}))
    for some in (rows, rows.slice(1), rows.slice(2)):
        columns = entry_columns(some, np.arange(some.num_rows), 99)
        found = encode_columns(columns, "p", None)
        assert columns.is_checked
        assert found == encode_columns(replace(columns, is_checked=False), "p", None)


def test_sequence_ids_that_do_not_grow_are_refused() -> None:
    rows = sink_rows(pa.RecordBatch.from_pydict({"value": ["1", "2"]}))
    with pytest.raises(ValueError, match="must grow"):
        entry_columns(rows, np.array([4, 4]), 99)


def test_rows_with_broken_offsets_are_refused() -> None:
    buffers = [None, pa.py_buffer(np.array([0, 3, 1], np.int32)), pa.py_buffer(b"abc")]
    rows = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), 2, buffers)], ["value"])
    with pytest.raises(ValueError, match="decrease"):
        entry_columns(rows, np.arange(2), 99)


PAIR = StructType().add("key", StringType()).add("value", BinaryType())


@pytest.mark.parametrize(
    ("columns", "has_topic", "said"),
    [
        ({"key": BinaryType()}, True, "needs a column value"),
        ({"value": BinaryType()}, False, "option topic"),
        ({"value": BinaryType(), "partition": LongType()}, True, "does not accept column partition"),
        ({"value": LongType()}, True, "column value has type bigint; cast it"),
        ({"value": StringType(), "key": LongType()}, True, "column key has type bigint; cast it"),
        ({"value": StringType(), "topic": BinaryType()}, True, "column topic has type binary"),
        ({"value": StringType(), "headers": StringType()}, True, "column headers has type string"),
        ({"value": StringType(), "headers": ArrayType(StringType())}, True, "column headers has type array<string>"),
    ],
)
def test_a_schema_that_cannot_be_written_is_refused(columns: dict[str, DataType], has_topic: bool, said: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(Unsupported, match=said):
        check_sink_columns(schema, has_topic)


def test_a_schema_that_can_be_written_is_not() -> None:
    schema = StructType().add("key", StringType()).add("value", BinaryType()).add("headers", ArrayType(PAIR))
    check_sink_columns(schema.add("topic", StringType()), False)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_null_values_become_null_messages(kind: pa.DataType) -> None:
    """In whole batches and slices, at every bit; what stands behind a null is not stored."""
    values = [None, "", "1", None, *["x"] * 9, None]
    column = pa.array(values, pa.string()).cast(kind)
    hidden = pa.Array.from_buffers(kind, 14, [column.buffers()[0], *pa.array(["??"] * 14, kind).buffers()[1:]])
    rows = sink_rows(pa.RecordBatch.from_arrays([column, hidden], ["value", "key"])).select(["value"])
    covered = sink_rows(pa.RecordBatch.from_arrays([hidden], ["value"]))
    for first in range(14):
        for some in (rows.slice(first), covered.slice(first)):
            columns = entry_columns(some, np.arange(14 - first), 0)
            data = encode_columns(columns, "p", None)
            found = [message.value for message in EntryView(data).messages()]
            assert [value is None for value in found] == [value is None for value in values[first:]]
            assert len(EntryView(data).values_data) == sum(len(value) for value in found if value is not None)
    assert [None if value is None else value.decode() for value in _values(rows)] == values


def _values(rows: pa.RecordBatch) -> list[bytes | None]:
    view = EntryView(encode_columns(entry_columns(rows, np.arange(rows.num_rows), 0), "p", None))
    return [message.value for message in view.messages()]


def test_a_null_is_refused_where_a_header_has_none() -> None:
    for pair in ((None, b""), ("h", None)):
        headers = pa.array([[pair]], HEADERS)
        rows = sink_rows(pa.RecordBatch.from_arrays([pa.array([b"x"]), headers], ["value", "headers"]))
        with pytest.raises(Unsupported, match="headers has a null"):
            entry_columns(rows, np.array([0]), 0)


@pytest.mark.parametrize("published_ms", [2**62, 2**63 - 1, -(2**63)])
def test_time_that_spark_cannot_hold(published_ms: int) -> None:
    """A sender's clock may have said anything; the row is read with the furthest time that there is."""
    data = encode_entry([EntryMessage(None, b"v", (), 0, published_ms)], "p", None)
    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC"))])
    (found,) = (
        EntryArrays(data, Position(2, 3), SEGMENT, TOPIC).batch(schema).column("timestamp").cast(pa.int64()).to_pylist()
    )
    assert found == (2**63 - 1) // 1_000 * 1_000 * (1 if published_ms > 0 else -1)
