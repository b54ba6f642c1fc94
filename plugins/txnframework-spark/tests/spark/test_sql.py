"""Topics in SQL: a temporary view works, a table is refused in one sentence, for Spark keeps its options to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from txnframework_spark.errors import describe_error

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
