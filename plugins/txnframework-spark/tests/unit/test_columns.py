"""Entries become Arrow batches and rows become entries, with nothing lost on the way."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from txnframework.model.entries import EntryMessage, EntryView, encode_columns, encode_entry
from txnframework.model.ids import Branch, TxnID
from txnframework.model.names import SegmentName
from txnframework.model.positions import Position
from txnframework_spark.errors import Unsupported
from txnframework_spark.sink.columns import check_sink_columns, entry_columns
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


def test_rows_become_the_same_messages() -> None:
    """Slices, nulls among keys, strings for binaries and missing headers are all ordinary."""
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = {
        "key": pa.array(["skipped", "k", None, ""], pa.string()),
        "value": pa.array([b"skipped", b"one", b"", b"three"], pa.binary()),
        "headers": pa.array([[("s", b"")], [("h", b"x")], None, [("a", b""), ("b", b"2")]], headers),
    }
    rows = pa.RecordBatch.from_pydict(table).slice(1)
    columns = entry_columns(rows, pa.array([4, 7, 8], pa.int64()), 99)
    view = EntryView(encode_columns(columns, "p", None))
    found = list(view.messages())
    assert [message.key for message in found] == [b"k", None, b""]
    assert [message.value for message in found] == [b"one", b"", b"three"]
    assert [message.headers for message in found] == [(("h", b"x"),), (), (("a", b""), ("b", b"2"))]
    assert [message.sequence_id for message in found] == [4, 7, 8]
    assert {message.published_ms for message in found} == {99}


def test_what_cannot_be_written_is_refused() -> None:
    for names, has_topic in ((["key"], True), (["value"], False), (["value", "partition"], True)):
        with pytest.raises(Unsupported):
            check_sink_columns(names, has_topic)
    with pytest.raises(Unsupported, match="null"):
        entry_columns(pa.RecordBatch.from_pydict({"value": [b"x", None]}), pa.array([0, 1], pa.int64()), 0)
    with pytest.raises(Unsupported, match="cast it"):
        entry_columns(pa.RecordBatch.from_pydict({"value": [1]}), pa.array([0], pa.int64()), 0)
