"""Rows are sorted to topics and segments once, each finds its own, and entries keep their bounds."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from txnframework.model.key_hashes import key_hash, keyless_hash
from txnframework.model.layout_changes import create_layout
from txnframework.model.names import TopicName
from txnframework_spark.errors import InvalidOption, Unsupported
from txnframework_spark.sink.rows import ROW, cut, group_by_segment, group_by_topic

OUT = TopicName.parse("out")


def rows_of(keys: list[bytes | None], values: list[bytes] | None = None) -> pa.RecordBatch:
    given = values if values is not None else [b"v"] * len(keys)
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(given, pa.binary())}
    return pa.RecordBatch.from_pydict({**columns, ROW: pa.array(range(len(keys)), pa.int64())})


@pytest.mark.parametrize("segments", [1, 2, 7])
def test_each_row_goes_where_one_alone_would_go_in_the_order_it_came(segments: int) -> None:
    chance = random.Random(segments)
    keys = [None if chance.random() < 0.3 else chance.randbytes(5) for _ in range(200)]
    layout = create_layout(OUT, segments)
    found = {segment.id: part.column(ROW).to_pylist() for segment, part in group_by_segment(rows_of(keys), layout, "p")}
    wanted: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        at = keyless_hash("p", number) if key is None else key_hash(key)
        wanted.setdefault(layout.route(at).id, []).append(number)
    assert found == wanted


def test_rows_without_any_key_go_by_their_numbers() -> None:
    layout = create_layout(OUT, 4)
    rows = rows_of([None] * 50)
    for both in (rows, rows.drop_columns("key")):
        for segment, part in group_by_segment(both, layout, "p"):
            for number in part.column(ROW).to_pylist():
                assert layout.route(keyless_hash("p", number)).id == segment.id


def test_rows_go_to_the_topics_that_they_name() -> None:
    """However they spell them: one topic's rows keep their order."""
    names = ["a", "b/c/d", "a", "topic://public/default/a"]
    rows = pa.RecordBatch.from_pydict({"value": [b"1", b"2", b"3", b"4"], "topic": names})
    found = [(str(topic), part.column("value").to_pylist()) for topic, part in group_by_topic(rows, None)]
    a = "topic://public/default/a"
    assert found == [(a, [b"1", b"3", b"4"]), ("topic://b/c/d", [b"2"])]
    assert [(topic, part.num_rows) for topic, part in group_by_topic(rows, OUT)] == [(OUT, 4)]


def test_a_topic_that_is_none_is_refused() -> None:
    for name, error in ((None, Unsupported), ("persistent://public/default/x", InvalidOption)):
        rows = pa.RecordBatch.from_pydict({"value": [b"1"], "topic": pa.array([name], pa.string())})
        with pytest.raises(error, match="topic"):
            list(group_by_topic(rows, None))


def test_entries_keep_their_bounds_and_a_larger_message_stands_alone() -> None:
    rows = rows_of([b"k"] * 6, [b"12", b"12", b"123456789", b"", b"", b"1"])
    sizes = [part.num_rows for part in cut(rows, 10, 6)]
    assert sizes == [2, 1, 3]
    assert [part.num_rows for part in cut(rows, 4, 1_000)] == [4, 2]
    assert sum(part.num_rows for part in cut(rows, 1, 1)) == 6
