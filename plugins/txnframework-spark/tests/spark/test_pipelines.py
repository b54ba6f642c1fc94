"""Pipelines on real Spark: every message once, whatever is killed, retried, deleted or asked twice."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Run = Callable[..., Any]


def values(first: int, last: int) -> list[str]:
    return [f"value {number}" for number in range(first, last)]


def once(first: int, last: int) -> Counter[str]:
    return Counter(values(first, last))


def test_restarts_lost_checkpoints_and_replays_repeat_nothing(stores: Any, run_available: Run) -> None:
    bounded = {"groupId": "g", "maxOffsetsPerTrigger": "20"}
    stores.publish(values(0, 50))
    query = run_available(source=bounded)
    assert len([progress for progress in query.recentProgress if progress.numInputRows]) >= 3
    assert stores.read() == once(0, 50)

    # The last batch again, as after a kill between the decision and Spark's record of it.
    assert stores.forget_last_batch() >= 2
    stores.publish(values(50, 60))
    run_available(source=bounded)
    assert stores.read() == once(0, 60)

    # Without its checkpoint a stateless pipeline goes on at the cursor.
    shutil.rmtree(stores.checkpoint)
    stores.publish(values(60, 65))
    run_available(source=bounded)
    assert stores.read() == once(0, 65)

    # Batch 0 of the new query again: Spark asks for the initial offset anew, and the cursor has moved.
    assert stores.forget_last_batch() == 0
    run_available(source=bounded)
    assert stores.read() == once(0, 65)


def test_a_failed_attempt_is_run_again_and_its_rows_do_not_count(stores: Any, run_available: Run) -> None:
    # Inside of the test: by its name the workers would look for it in this module, which they cannot import.
    def fail_first_attempts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark.taskcontext import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0 and number == 0:
                raise RuntimeError("the first attempt fails after its rows were handed on")

    def transform(frame: DataFrame) -> DataFrame:
        return frame.select("key", "value").mapInArrow(fail_first_attempts, "key binary, value binary")

    stores.publish(values(0, 30))
    run_available(transform)
    assert stores.read() == once(0, 30)


def test_a_row_may_name_its_topic_and_all_topics_are_one_transaction(stores: Any, run_available: Run) -> None:
    from pyspark.sql import functions

    stores.create("other")

    def transform(frame: DataFrame) -> DataFrame:
        number = functions.split(frame.value.cast("string"), " ")[1].cast("int")
        topic = functions.when(number % 2 == 0, "other").otherwise("another")
        return frame.select(frame.key, frame.value, topic.alias("topic"))

    stores.publish(values(0, 4))
    from pyspark.errors import StreamingQueryException

    no_topic = {"txnAppId": "app"}
    with pytest.raises(StreamingQueryException, match="another does not exist"):
        run_available(transform, sink=no_topic)
    assert stores.read("other") == Counter()
    stores.create("another")
    run_available(transform, sink=no_topic)
    assert stores.read("other") + stores.read("another") == once(0, 4)


def test_a_killed_pipeline_goes_on_exactly(stores: Any, pipeline: Any, run_available: Run) -> None:
    """Killed in mid-write, then between the decision and Spark's record of it; then it is left alone.

    In the second run an output segment is split under the open transaction, in mid-write, and an input segment as well.
    """

    def split() -> None:
        stores.split("out", 0)
        stores.split("in", 1)
        stores.publish(values(50, 70))

    stores.publish(values(0, 50))
    report = pipeline.kill_at("mid-write@1")
    assert report["rows_written"] > 0
    seen = stores.read()
    assert 0 < sum(seen.values()) <= 20
    assert max(seen.values()) == 1
    report = pipeline.kill_at("committed@1", before=("mid-write@1", split))
    assert report["batch"] == 1
    assert not (stores.checkpoint / "commits" / "1").exists()
    run_available(source={"groupId": "g", "maxOffsetsPerTrigger": "20"})
    assert stores.read() == once(0, 70)


def test_what_cannot_work_is_explained(spark: SparkSession, stores: Any, run_available: Run) -> None:
    from pyspark.errors import AnalysisException, StreamingQueryException

    stores.publish(values(0, 4))

    def twice(frame: DataFrame) -> DataFrame:
        options = {"metadata": stores.url, "subscribe": "in", "groupId": "g"}
        other = spark.readStream.format("txnframework").options(**options).load()
        return frame.select("key", "value").union(other.select("key", "value"))

    with pytest.raises(StreamingQueryException, match=r"twice|taken over"):
        run_available(twice)
    with pytest.raises(AnalysisException, match="did you mean groupId"):
        spark.readStream.format("txnframework").options(subscribe="in", gruopId="g").load()
    with pytest.raises(AnalysisException, match="availableNow"):
        spark.read.format("txnframework").options(subscribe="in").load().collect()
