"""The sink of a stream for Spark: every call runs in its own process, and only messages connect the calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txnframework.broker import Host
from txnframework_spark import process
from txnframework_spark.microbatch.batch import MicroBatch, TaskAttempt, batch_id, begin, current_task, load_current_run
from txnframework_spark.microbatch.pause import BEGUN, MID_WRITE, STAGED, Pauses
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.process import retry_unavailable
from txnframework_spark.sink.branch_writer import open_attempt_writer, write_batches
from txnframework_spark.sink.commit import Staged, abort_staged, commit_staged, require_no_acknowledgments
from txnframework_spark.sink.rows import check_sink_columns

if TYPE_CHECKING:
    import pyarrow as pa


BEGINNING_PARTITION: Final = 0
"""The partition whose task begins the transaction of a batch even without rows; every write of Spark has it."""


class TransactionalWriter(DataSourceStreamArrowWriter):
    """The sink of a stream: each micro-batch is one transaction over all its output topics.

    Spark creates instances several times and in several processes for each batch; creation has no side effects.
    """

    _follows: str | None = None

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SinkOptions.of_stream(options)
        check_sink_columns(schema, self._options.topic is not None)

    def __getstate__(self) -> dict[str, Any]:
        """
        Return the state for the tasks of a micro-batch; Spark pickles a writer only for them, just before they start.

        The state includes the application's current run. So a late task of a dead run detects that a newer run has
        claimed the application since. Without ``txnAppId`` the application is the query id, which only tasks know.
        """
        application = self._options.application_id
        if application is not None and self._follows is None:
            host = process.host(self._options.stores)
            self._follows = process.run(retry_unavailable(host, lambda: load_current_run(host, application)))
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """
        Stage a task's rows; a replay stages them as well, which costs one discarded write.

        A task without rows needs no transaction, except in the partition whose task begins it in every case: also a
        batch without rows is committed, because it acknowledges what it has read. Many tasks of an aggregation have no
        rows, and when all tasks begin the transaction at the same time, all but one have written in vain.
        """
        task = current_task()
        host = process.host(self._options.stores)
        if not self._options.transactional:
            return self._write_at_once(host, task, iterator)
        application = self._options.application_id or task.batch.query
        if task.partition != BEGINNING_PARTITION:
            rest = _with_rows(iterator)
            if rest is None:
                return Staged(None, 0, 0, task.batch, application)
            iterator = rest
        batch = batch_id(application, task.batch, self._follows)
        txn_id = process.run(retry_unavailable(host, lambda: begin(host, batch, self._options.transaction_timeout_ms)))
        name = f"{application}/{task.batch.batch}/{task.partition}"
        writer, branch = open_attempt_writer(host, self._options, txn_id, name)
        pauses = Pauses.from_environment()

        def reach(point: str, **more: object) -> None:
            doing = {"query": task.batch.query, "run": task.batch.run, "txn": txn_id, "branch": branch}
            pauses.reach(point, task.batch.batch, **doing, partition=task.partition, attempt=task.attempt, **more)

        def halfway() -> None:
            reach(MID_WRITE, rows_written=writer.rows)

        reach(BEGUN)
        write_batches(writer, iterator, halfway if pauses.includes(MID_WRITE, task.batch.batch) else None)
        reach(STAGED, rows_written=writer.rows)
        return Staged(str(txn_id), branch, writer.rows, task.batch, application)

    def _write_at_once(self, host: Host, task: TaskAttempt, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Write rows outside of transactions; they are visible when they are written."""
        writer, _ = open_attempt_writer(host, self._options, None, f"{task.batch.query}/{task.partition}")
        write_batches(writer, _unacknowledged(host, task.batch, iterator))
        return Staged(None, 0, writer.rows, task.batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Decide the batch; a return means that it is committed, now or before. After an error Spark calls abort."""
        host = process.host(self._options.stores)
        process.run(commit_staged(host, self._options, staged_messages(messages), batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort the transactions that the messages name, unless they are committed.

        Without any message (every task failed) the transaction is unknown here: the next batch or run aborts it, at the
        latest its timeout.
        """
        staged = [message for message in staged_messages(messages) if message is not None]
        if staged:
            process.run(abort_staged(process.host(self._options.stores), staged))


def staged_messages(messages: list[WriterCommitMessage | None]) -> list[Staged | None]:
    """Return Spark's messages with their type; None for a task that has failed."""
    return [message if isinstance(message, Staged) else None for message in messages]


def _with_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """Return the same batches from the first one that has rows, or None."""
    for rows in batches:
        if rows.num_rows:
            return itertools.chain((rows,), batches)
    return None


def _unacknowledged(host: Host, batch: MicroBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass the rows on, after a check that they may be written without a transaction.

    A read task registers its acknowledgments before its first row. So the check at the first row sees the registration,
    and nothing is visible yet.
    """
    looked = False
    for rows in batches:
        if rows.num_rows and not looked:
            process.run(require_no_acknowledgments(host.metadata, batch))
            looked = True
        yield rows
