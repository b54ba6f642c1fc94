"""Entries become Arrow batches and rows become entries, with nothing lost on the way."""

from __future__ import annotations

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

from txnframework.model.entries import EntryMessage, EntryView, encode_columns, encode_entry
from txnframework.model.ids import Branch, TxnID
from txnframework.model.names import SegmentName
from txnframework.model.positions import Position
from txnframework_spark.errors import Unsupported
from txnframework_spark.sink.columns import check_sink_columns, entry_columns, sink_rows
from txnframework_spark.source.columns import EntryArrays

SEGMENT = SegmentName.parse("segment://public/default/in/0000-ffff-0")
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
    batch = EntryArrays(entry(), Position(2, 3), SEGMENT).batch(schema)
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
    headers = [[(pair["key"], pair["value"]) for pair in row["headers"]] for row in rows]
    assert headers == [[("h", b"x")], [], [("a", b""), ("b", b"2")]]


def test_messages_that_are_done_are_left_out() -> None:
    schema = to_arrow_schema(SOURCE, timezone="UTC")
    batch = EntryArrays(entry(), Position(2, 3), SEGMENT).batch(schema, kept=[1])
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


PAIR = StructType().add("key", StringType()).add("value", BinaryType())


@pytest.mark.parametrize(
    ("columns", "has_topic", "said"),
    [
        ({"key": BinaryType()}, True, "needs a column value"),
        ({"value": BinaryType()}, False, "option topic"),
        ({"value": BinaryType(), "partition": LongType()}, True, "no use for column partition"),
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


def test_a_null_is_refused_where_a_message_has_none() -> None:
    with pytest.raises(Unsupported, match="coalesce"):
        sink_rows(pa.RecordBatch.from_pydict({"value": [b"x", None]}))
    for pair in ((None, b""), ("h", None)):
        headers = pa.array([[pair]], HEADERS)
        rows = sink_rows(pa.RecordBatch.from_arrays([pa.array([b"x"]), headers], ["value", "headers"]))
        with pytest.raises(Unsupported, match="headers has a null"):
            entry_columns(rows, np.array([0]), 0)
