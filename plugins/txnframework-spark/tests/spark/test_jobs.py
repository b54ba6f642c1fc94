"""Batch jobs on real Spark: one transaction each, once for each version, and clear words for what cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """Return rows ``value 0`` to ``value 29`` in three tasks."""
    return spark.range(0, 30, numPartitions=3).selectExpr("cast(id as string) as key", "concat('value ', id) as value")


def once(first: int, last: int) -> Counter[str]:
    return Counter(f"value {number}" for number in range(first, last))


def save(frame: DataFrame, stores: Any, mode: str = "append", **options: str) -> None:
    given = {"metadata": stores.url, "topic": "out", **options}
    frame.write.format("txnframework").options(**given).mode(mode).save()


def test_a_version_is_written_once_whatever_attempts_it_takes(frame: DataFrame, stores: Any) -> None:
    # Inside of the test: by its name the workers would look for it in this module, which they cannot import.
    def fail_first_attempts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark.taskcontext import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and context.partitionId() == 1:
            raise RuntimeError("the first attempt fails after its rows were handed on")

    flaky = frame.mapInArrow(fail_first_attempts, "key string, value string")
    save(flaky, stores, txnAppId="jobs", txnVersion="1")
    assert stores.read() == once(0, 30)
    save(frame, stores, txnAppId="jobs", txnVersion="1")
    assert stores.read() == once(0, 30)
    save(frame.limit(0), stores, txnAppId="jobs", txnVersion="2")
    save(frame, stores, transactional="false")
    assert sum(stores.read().values()) == 60


def test_a_job_that_fails_writes_nothing(frame: DataFrame, stores: Any) -> None:
    from pyspark.sql import functions

    null = functions.array(functions.struct(functions.lit(None).cast("string").alias("key"), frame.value))
    wrong = functions.when(frame.key == "29", null)
    with pytest.raises(Exception, match="headers has a null"):
        save(frame.select("key", "value", wrong.alias("headers")), stores)
    assert stores.read() == Counter()


def test_null_values_go_out_and_come_in(spark: SparkSession, stores: Any) -> None:
    """Null and empty values are distinct; missing headers are null."""
    rows = spark.sql("select * from values ('a', 'one'), ('b', ''), ('c', null), (null, null) as rows(key, value)")
    save(rows, stores)
    options = {"metadata": stores.url, "subscribe": "out", "includeHeaders": "true"}
    read = spark.read.format("txnframework").options(**options).load()
    found = {row.key and row.key.decode(): (row.value and bytes(row.value), row.headers) for row in read.collect()}
    assert found == {"a": (b"one", None), "b": (bytearray(), None), "c": (None, None), None: (None, None)}
    assert (read.where("value is null").count(), read.where("value is not null").count()) == (2, 2)
    save(read.select("key", "value", "headers"), stores)
    again = spark.read.format("txnframework").options(**options).load()
    assert again.where("value is null and headers is null").count() == 4


def test_what_cannot_be_written_is_said(spark: SparkSession, frame: DataFrame, stores: Any) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="mode append, or delete the topic"):
        save(frame, stores, mode="overwrite")
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(AnalysisException, match=r"[Aa]ppend"):
            save(frame, stores, mode=mode)
    with pytest.raises(AnalysisException, match="did you mean txnVersion"):
        save(frame, stores, txnVerson="1")
    with pytest.raises(AnalysisException, match="topic create topic://public/default/nowhere"):
        save(frame, stores, topic="nowhere")
    with pytest.raises(AnalysisException, match="column value has type bigint; cast it"):
        save(spark.range(3).withColumnRenamed("id", "value"), stores)
    assert stores.read() == Counter()
