"""Reading on real Spark: batches, their columns, and what the progress of a stream tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, stores: Any, **options: str) -> DataFrame:
    return spark.read.format("txnframework").options(metadata=stores.url, **({"subscribe": "in"} | options)).load()


def test_a_batch_reads_every_column_and_ends_where_it_was_planned(spark: SparkSession, stores: Any) -> None:
    stores.publish([str(number) for number in range(20)])
    read = frame(spark, stores, includeHeaders="true", includeTransaction="true", minPartitions="4")
    assert read.columns == [
        *("key", "value", "topic", "segment", "offset", "timestamp"),
        *("headers", "__txn", "__producer", "__sequence"),
    ]
    rows = read.orderBy("segment", "offset").collect()
    assert sorted(int(row.value) for row in rows) == list(range(20))
    assert [row.key for row in rows] == [row.value for row in rows]
    assert {(row.topic, row["__txn"], row["__producer"]) for row in rows} == {
        ("topic://public/default/in", None, "test")
    }
    assert all(row.headers is None and row.timestamp.timestamp() == 0 for row in rows)
    places = [(row.segment, *row.offset) for row in rows]
    assert places == sorted(places)
    assert read.rdd.getNumPartitions() >= 4


def test_the_progress_of_a_stream_tells_its_lag(run_available: Callable[..., Any], stores: Any) -> None:
    stores.publish([str(number) for number in range(20)])
    options = {"groupId": "g", "maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "5"}
    query = run_available(source=options)
    lags = [json.loads(one.sources[0].latestOffset)["lag"]["messages"] for one in query.recentProgress]
    assert lags[0] == 20 - query.recentProgress[0].numInputRows
    assert lags[-1] == 0
    stores.publish([str(number) for number in range(20, 40)])
    query = run_available(source={"groupId": "g", "maxBytesPerTrigger": "500"})
    batches = [one.numInputRows for one in query.recentProgress if one.numInputRows]
    assert sum(batches) == 20
    assert len(batches) > 1


def test_enough_is_waited_for(run_available: Callable[..., Any], stores: Any) -> None:
    """With availableNow nothing is: nothing more may come."""
    stores.publish(["a"])
    run_available(source={"groupId": "g", "minOffsetsPerTrigger": "5"})
    assert stores.read() == {"a": 1}


def test_a_batch_says_what_it_cannot_do(spark: SparkSession, stores: Any) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="nowhere does not exist; create it first"):
        frame(spark, stores, subscribe="nowhere").collect()
    with pytest.raises(AnalysisException, match="a batch does not acknowledge messages"):
        frame(spark, stores, groupId="g").collect()
    assert frame(spark, stores).collect() == []
