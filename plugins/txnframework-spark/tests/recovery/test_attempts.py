"""Tasks that run more than once: what a failed, killed or slower attempt wrote does not count."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psutil

from txnframework_spark.testing.cluster import StandaloneCluster
from txnframework_spark.testing.expectations import LEFT, RIGHT, Defects, compare
from txnframework_spark.testing.stores import Stores, values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

HOSTS = ("127.0.0.1", "127.0.0.2")
BOTH_SEGMENTS = {"alignSegments": "false"}
"""Each batch reads of both segments, though one was stored after the other; so it has two tasks."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


def test_an_attempt_fails_after_its_rows_were_written(stores: Stores, run: Callable[..., str | None]) -> None:
    # Inside of the test: by its name the workers would look for it in this module, which they cannot import.
    def fail_first_attempts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark.taskcontext import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0 and number == 0:
                raise RuntimeError("the first attempt fails after its rows were handed on")

    def transform(frame: DataFrame) -> DataFrame:
        from txnframework_spark.testing.program import both

        return both(frame.select("key", "value").mapInArrow(fail_first_attempts, "key binary, value binary"))

    stores.publish(values(0, 30))
    assert run(transform) is None
    assert compare(stores.rows(LEFT, RIGHT), values(0, 30)) == Defects()


def test_a_python_worker_is_killed_while_it_writes(stores: Stores, start_process: Callable[..., Any]) -> None:
    """Half of its rows are durable by then; its task writes all of them again, under a branch of its own."""
    stores.publish(values(0, 40))
    with start_process("mid-write@1") as driver:
        *_, killed = driver.arrivals("mid-write@1", 2)
        os.kill(killed["pid"], signal.SIGKILL)
        *_, again = driver.arrivals("mid-write@1", 3)
        assert (again["partition"], again["txn"]) == (killed["partition"], killed["txn"])
        assert again["attempt"] > killed["attempt"]
        driver.release("mid-write@1")
        assert driver.failure() is None
    assert compare(stores.rows(LEFT, RIGHT), values(0, 40)) == Defects()


def test_an_executor_is_killed_and_a_slow_task_runs_twice_at_once(
    stores: Stores, start_process: Callable[..., Any]
) -> None:
    """On a cluster: in batch 0 an executor is killed in mid-write; in batch 1 a task is so slow when all of its rows
    are written that Spark starts it a second time beside the first.

    Both attempts have then staged all of their rows in the same transaction, and the one that reports first counts.
    """
    stores.publish(values(0, 40))
    with StandaloneCluster(stores.directory / "cluster", hosts=HOSTS) as cluster:
        points = ("mid-write@0", "staged@1")
        with start_process(*points, conf={**cluster.conf, **SPECULATION}, source=BOTH_SEGMENTS) as driver:
            *_, killed = driver.arrivals("mid-write@0", 2)
            (executor,) = {parent.pid for parent in psutil.Process(killed["pid"]).parents()} & {*cluster.executors()}
            os.kill(executor, signal.SIGKILL)
            *_, again = driver.arrivals("mid-write@0", 3)
            assert (again["partition"], again["txn"]) == (killed["partition"], killed["txn"])
            driver.release("mid-write@0")

            fast, slow = driver.arrivals("staged@1", 2)
            driver.release("staged@1", fast["pid"])
            *_, copy = driver.arrivals("staged@1", 3)
            assert (copy["partition"], copy["txn"]) == (slow["partition"], slow["txn"])
            assert copy["rows_written"] == slow["rows_written"] > 0
            assert copy["branch"] != slow["branch"]
            driver.release("staged@1", copy["pid"])
            assert driver.failure() is None
    assert compare(stores.rows(LEFT, RIGHT), values(0, 40)) == Defects()
