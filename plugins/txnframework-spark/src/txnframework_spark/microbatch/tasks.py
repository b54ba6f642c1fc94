"""Which batch of which query a task belongs to, as Spark tells it inside of a task."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework_spark.errors import Unsupported


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """One micro-batch: ``query`` lives as long as the checkpoint, ``run`` until the query stops."""

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
    """Return partition and attempt of the task that this process runs now, of whatever kind of job."""
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    if context is None:
        raise Unsupported("this runs inside of a Spark task only")
    return context.partitionId(), context.attemptNumber()


def current_task() -> TaskFacts:
    """Return the facts of the task that this process runs now; Unsupported outside of a micro-batch's tasks."""
    from pyspark.taskcontext import TaskContext  # imported late: unit tests of the decisions need no Spark

    context = TaskContext.get()
    if context is None:
        raise Unsupported("this runs inside of a Spark task only")
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    # A query's jobs carry its run as their group, so that stopping the query cancels them.
    run = context.getLocalProperty("spark.jobGroup.id")
    if query is None or batch is None or run is None:
        raise Unsupported(
            "a stream of the txnframework format is read and written in micro-batches, and this task belongs to none;"
            " use trigger processingTime or availableNow"
        )
    return TaskFacts(BatchFacts(query, run, int(batch)), context.partitionId(), context.attemptNumber())
