"""The sink as Spark sees it: every call stands alone, in a process of its own, and only messages connect them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from txnframework.model.ids import BRANCH_BITS, Branch
from txnframework_spark import process
from txnframework_spark.microbatch.applications import begin
from txnframework_spark.microbatch.pause import BEGUN, MID_WRITE, STAGED, Pauses
from txnframework_spark.microbatch.tasks import current_task
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.sink.columns import check_sink_columns
from txnframework_spark.sink.committing import abort_staged, commit_staged
from txnframework_spark.sink.staged import Staged
from txnframework_spark.sink.staging import BranchWriter

if TYPE_CHECKING:
    import pyarrow as pa


class TransactionalWriter(DataSourceStreamArrowWriter):
    """One micro-batch is one transaction over all its output topics.

    Made several times and in several processes for each batch; making one has no effect.
    """

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        self._options = SinkOptions.parse(options)
        check_sink_columns(columns, self._options.topic is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows; always all of them, also in a replay, which costs one discarded write.

        An attempt that fails leaves entries under a branch that nobody lists: they are aborted with no further step.
        """
        task = current_task()
        pauses = Pauses.from_environment()
        host = process.host(self._options.stores)
        application = self._options.application_id or task.batch.query
        txn_id = process.run(begin(host, application, task.batch, self._options.transaction_timeout_ms))
        # Random, never the attempt's number: that one starts over when a batch is replayed.
        branch = Branch(txn_id, host.environment.random_bits(BRANCH_BITS) | 1)
        producer = f"spark/{application}/{task.batch.batch}/{task.partition}/{branch.number:016x}"
        writer = BranchWriter(host, branch, producer)
        doing = {
            "query": task.batch.query,
            "run": task.batch.run,
            "txn": txn_id,
            "branch": branch.number,
            "partition": task.partition,
            "attempt": task.attempt,
        }
        pauses.reach(BEGUN, task.batch.batch, **doing)
        paused = not pauses.includes(MID_WRITE, task.batch.batch)
        for rows in iterator:
            if paused or not rows.num_rows:
                process.run(writer.write(rows, self._options.topic))
                continue
            half = (rows.num_rows + 1) // 2
            process.run(writer.write(rows.slice(0, half), self._options.topic))
            pauses.reach(MID_WRITE, task.batch.batch, **doing, rows_written=writer.rows)
            process.run(writer.write(rows.slice(half), self._options.topic))
            paused = True
        pauses.reach(STAGED, task.batch.batch, **doing, rows_written=writer.rows)
        return Staged(
            application=application,
            query=task.batch.query,
            run=task.batch.run,
            batch=task.batch.batch,
            txn=str(txn_id),
            branch=branch.number,
            partition=task.partition,
            attempt=task.attempt,
            rows=writer.rows,
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Decide the batch; returning means that it is committed, now or before. Raising makes Spark call ``abort``."""
        host = process.host(self._options.stores)
        process.run(commit_staged(host, self._options, _staged(messages), batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """End what the messages name, unless it was committed after all; never undoes a commit.

        Without any message (every task failed) nothing is known here: the next batch or run ends the transaction, or
        its timeout does.
        """
        staged = [message for message in _staged(messages) if message is not None]
        if staged:
            process.run(abort_staged(process.host(self._options.stores), staged))


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged | None]:
    return [message if isinstance(message, Staged) else None for message in messages]
