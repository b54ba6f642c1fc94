"""A micro-batch: its query, run and number from Spark's task context, and its transaction, shared by all its tasks."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.broker import Host
from txnframework.interfaces import IApplicationCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.transactions import BatchID
from txnframework_spark.errors import Unsupported


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch: ``query`` is stable for the life of the checkpoint, ``run`` until the query stops."""

    query: str
    run: str
    batch: int


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt of one task of a micro-batch."""

    batch: MicroBatch
    partition: int
    attempt: int


def current_attempt() -> tuple[int, int]:
    """Return partition and attempt of the task that this process runs; Unsupported outside of a task."""
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    if context is None:
        raise Unsupported("this runs inside of a Spark task only")
    return context.partitionId(), context.attemptNumber()


def current_task() -> TaskAttempt:
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
    return TaskAttempt(MicroBatch(query, run, int(batch)), context.partitionId(), context.attemptNumber())


async def application_coordinator(host: Host) -> IApplicationCoordinator:
    """Return the coordinator of scalable topics, or raise Unsupported if it keeps no application records."""
    coordinator = await host.coordinator("segment")
    if not IApplicationCoordinator.providedBy(coordinator):
        raise Unsupported(
            "the coordinator that domains.segment.coordinator names keeps no application records, which a Spark sink"
            " needs to commit a batch exactly once; use coordinator metadata"
        )
    return coordinator


def batch_id(application: str, facts: MicroBatch, follows: str | None = None) -> BatchID:
    """Return the coordinator's id of the batch."""
    return BatchID(application, facts.query, facts.run, facts.batch, follows)


async def load_current_run(host: Host, application: str) -> str:
    """Return the current run of the application; empty if it has none."""
    found = await (await application_coordinator(host)).application(application)
    return "" if found is None else found.run


async def begin(host: Host, batch: BatchID, timeout_ms: int) -> TxnID:
    """
    Claim the application for the batch's run, if necessary, and return the batch's open transaction.

    The call is idempotent: the first task begins the transaction, and other tasks find it. A caller may repeat the call
    after an unknown outcome.

    :raises Fenced: a newer run of the application has begun; this run must stop.
    """
    return (await (await application_coordinator(host)).begin_batch(batch, timeout_ms)).txn_id
