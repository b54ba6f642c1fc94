"""The batch and query of a task, from Spark's task context."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework_spark.errors import Unsupported


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """One micro-batch: ``query`` is stable for the life of the checkpoint, ``run`` until the query stops."""

    query: str
    run: str
    batch: int


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One attempt of one task of a micro-batch."""

    batch: BatchFacts
    partition: int
    attempt: int


def current_attempt() -> tuple[int, int]:
    """Return partition and attempt of the task that this process runs; Unsupported outside of a task."""
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    if context is None:
        raise Unsupported("this runs inside of a Spark task only")
    return context.partitionId(), context.attemptNumber()


def current_task() -> TaskFacts:
    """Return the facts of the task that this process runs; Unsupported outside of a micro-batch's tasks."""
    from pyspark.taskcontext import TaskContext  # imported late: unit tests of the decisions need no Spark

    context = TaskContext.get()
    if context is None:
        raise Unsupported("this runs inside of a Spark task only")
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    # Spark uses the run as the job group of a query's jobs, to cancel them when the query stops.
    run = context.getLocalProperty("spark.jobGroup.id")
    if query is None or batch is None or run is None:
        raise Unsupported(
            "a stream of the txnframework format is read and written in micro-batches, and this task belongs to none;"
            " use trigger processingTime or availableNow"
        )
    return TaskFacts(BatchFacts(query, run, int(batch)), context.partitionId(), context.attemptNumber())
