"""Topics in SQL: a temporary view works, a table is refused in one sentence, for Spark keeps its options to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from txnframework_spark import describe_error
from txnframework_spark.testing.pipelines import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = (
    "a topic cannot be a table of CREATE TABLE: Spark does not hand a table's options to a Python source; use CREATE"
)


def test_a_topic_is_a_temporary_view(spark: SparkSession, stores: Any) -> None:
    stores.publish(["a", "b"])
    options = f"OPTIONS (metadata '{stores.url}', subscribe 'in')"
    spark.sql(f"CREATE TEMPORARY VIEW topic_in USING txnframework {options}")
    try:
        found = spark.sql("SELECT cast(value AS string) AS value FROM topic_in").collect()
    finally:
        spark.catalog.dropTempView("topic_in")
    assert sorted(row.value for row in found) == ["a", "b"]


def test_a_stream_is_queried_in_sql(spark: SparkSession, stores: Any) -> None:
    stores.publish(["a", "b"])
    given = {"metadata": stores.url, "subscribe": "in", "startingOffsets": "earliest"}
    spark.readStream.format("txnframework").options(**given).load().createOrReplaceTempView("stream_in")
    try:
        rows = spark.sql("SELECT upper(cast(value AS string)) AS value FROM stream_in")
        writer = rows.writeStream.format("txnframework").options(metadata=stores.url, topic="out")
        query = writer.option("checkpointLocation", str(stores.checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
    finally:
        spark.catalog.dropTempView("stream_in")
    assert stores.read() == {"A": 1, "B": 1}


@pytest.mark.parametrize(
    ("trigger", "refused"), [("realTime", "REAL_TIME_MODE"), ("continuous", "continuous processing")]
)
def test_a_trigger_that_spark_refuses(spark: SparkSession, stores: Any, trigger: str, refused: str) -> None:
    """Spark refuses Python sources and sinks there, before anything is read; the page says so."""
    frame = spark.readStream.format("txnframework").options(metadata=stores.url, subscribe="in").load().select("value")
    writer = frame.writeStream.format("txnframework").options(metadata=stores.url, topic="out")
    writer = writer.option("checkpointLocation", str(stores.checkpoint)).trigger(**{trigger: "5 seconds"})
    with pytest.raises(Exception, match=refused):
        (writer.outputMode("update") if trigger == "realTime" else writer).start().awaitTermination(WAIT_S)


def test_a_topic_is_no_table(spark: SparkSession, stores: Any, tmp_path: Any) -> None:
    """Said when it is made; of one that names its columns Spark tells us only when it is read or written."""
    from pyspark.errors import PySparkException

    spark.sql(f"CREATE DATABASE tables LOCATION '{tmp_path / 'tables'}'")
    try:
        options = f"OPTIONS (metadata '{stores.url}', subscribe 'in')"
        with pytest.raises(PySparkException) as caught:
            spark.sql(f"CREATE TABLE tables.one USING txnframework {options}")
        assert describe_error(caught.value).startswith(REFUSED)
        spark.sql(f"CREATE TABLE tables.two (value string) USING txnframework {options}")
        for statement in ("SELECT * FROM tables.two", "INSERT INTO tables.two VALUES ('a')"):
            with pytest.raises(PySparkException) as caught:
                spark.sql(statement).collect()
            assert REFUSED in describe_error(caught.value)
    finally:
        spark.sql("DROP DATABASE tables CASCADE")
