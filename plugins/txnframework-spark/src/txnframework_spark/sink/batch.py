"""The sink of a batch job for Spark: ``df.write.format("txnframework").mode("append").save()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txnframework_spark import process
from txnframework_spark.microbatch.tasks import current_attempt
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.sink.attempt import attempt_writer, write_all
from txnframework_spark.sink.columns import check_sink_columns
from txnframework_spark.sink.jobs import Job, abort_job, begin_job, commit_job
from txnframework_spark.sink.staged import Staged
from txnframework_spark.sink.streaming import staged_of

if TYPE_CHECKING:
    import pyarrow as pa


class JobWriter(DataSourceArrowWriter):
    """The sink of a batch job, which is one transaction over all its output topics."""

    def __init__(self, options: SinkOptions, job: Job) -> None:
        self._options = options
        self._job = job

    @classmethod
    def begun(cls, given: Mapping[str, str], schema: StructType) -> JobWriter:
        """
        Begin the job and return its writer.

        Spark creates the writer of a batch job once, in a process on the driver, before it starts the tasks. Tasks and
        commit get copies of it. So the transaction is begun here and not by the first task.
        """
        options = SinkOptions.of_job(given)
        check_sink_columns(schema, options.topic is not None)
        # No other process may be running that ends the transactions of dead jobs, so this process sweeps.
        return cls(options, process.run(begin_job(process.host(options.stores, sweep=True), options)))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows; a replay stages none."""
        if self._job.replay:
            for _ in iterator:
                pass
            return Staged(None, 0, 0)
        partition, _ = current_attempt()
        host = process.host(self._options.stores)
        name = f"{self._job.application or self._job.run}/{self._job.version}/{partition}"
        writer, branch = attempt_writer(host, self._options, self._job.txn_id, name)
        write_all(writer, iterator)
        return Staged(self._job.txn, branch, writer.rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide the job; a normal return means that it is committed. After an error Spark calls ``abort``."""
        process.run(commit_job(process.host(self._options.stores), self._job, staged_of(messages)))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Abort the job's transaction, unless it is committed."""
        process.run(abort_job(process.host(self._options.stores), self._job))
