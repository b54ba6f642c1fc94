"""The sink of a batch job: ``df.write.format("txnframework").mode("append").save()``.

The transaction of a job is begun on the driver before its tasks, and committed or aborted there after them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txnframework.broker import Host
from txnframework.errors import Conflict, Fenced, TransactionConflict, TransactionNotFound
from txnframework.interfaces import IApplicationCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.transactions import BatchID, Begin
from txnframework_spark import process
from txnframework_spark.errors import BatchNotCommitted
from txnframework_spark.microbatch.batch import application_coordinator, begin, current_attempt
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.process import retry_unavailable
from txnframework_spark.sink.branch_writer import layout_of, open_attempt_writer, write_batches
from txnframework_spark.sink.commit import Staged, abort_open, commit_branches, is_committed, settle
from txnframework_spark.sink.rows import check_sink_columns
from txnframework_spark.sink.stream import staged_messages
from txnframework_spark.sink.verdict import JOBS, judge_job, require_kind

if TYPE_CHECKING:
    import pyarrow as pa


_LOG: Final = logging.getLogger("txnframework_spark.sink")
_RUN_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class BatchJob:
    """
    One batch job; the driver passes it to the job's tasks.

    ``run``: its random name. ``txn`` None: no transaction. ``replay``: an earlier job committed the same version, so
    this one writes nothing.
    """

    run: str
    txn: str | None = None
    application: str | None = None
    version: int = 0
    replay: bool = False

    @property
    def txn_id(self) -> TxnID | None:
        """The id of the transaction."""
        return None if self.txn is None else TxnID.parse(self.txn)

    @property
    def batch(self) -> BatchID | None:
        """The coordinator's id of the job, None without an application."""
        if self.application is None:
            return None
        return BatchID(self.application, JOBS, self.run, self.version)


async def begin_job(host: Host, options: SinkOptions) -> BatchJob:
    """
    Begin the job's transaction, unless an earlier job committed the same version.

    The transaction of a job that dies stays open until the next job of the application aborts it, at the latest until
    its timeout. Beginning a job aborts the application's job in progress, whose commit will then raise.

    :raises ApplicationMixed: the application belongs to a stream.
    :raises TopicMissing: the topic of the option does not exist.
    """
    run = f"{host.environment.random_bits(_RUN_BITS):032x}"
    if options.topic is not None:
        await layout_of(host, options.topic)
    if not options.transactional:
        return BatchJob(run)
    coordinator = await application_coordinator(host)
    if options.application_id is None or options.version is None:
        # A retry after an unknown outcome leaves an unreferenced transaction open; it times out.
        alone = await retry_unavailable(host, lambda: coordinator.begin(Begin(options.transaction_timeout_ms)))
        return BatchJob(run, str(alone.txn_id))
    replay = BatchJob(run, None, options.application_id, options.version, replay=True)
    # Checked before any change: a replay, or a job of the wrong kind, must not abort another job.
    if await retry_unavailable(host, lambda: _is_replay(coordinator, replay)):
        return replay
    batch = BatchID(options.application_id, JOBS, run, options.version)
    began = await retry_unavailable(host, lambda: begin(host, batch, options.transaction_timeout_ms))
    try:
        # The replaced job, or a stream, may have committed since.
        if not await retry_unavailable(host, lambda: _is_replay(coordinator, replay)):
            return BatchJob(run, str(began), options.application_id, options.version)
    except BaseException:
        await abort_open(coordinator, {began: batch})
        raise
    await abort_open(coordinator, {began: batch})
    return replay


async def commit_job(host: Host, job: BatchJob, messages: Sequence[Staged | None]) -> None:
    """
    Commit the rows that the tasks wrote, by one compare-and-set.

    :raises Fenced: a newer job of the application has begun; nothing counts.
    :raises BatchNotCommitted: the transaction has ended, or a task's message is missing; nothing counts.
    :raises OutcomeUnknown: all retries had an unknown outcome. With txnVersion, running the same job again determines
        it.
    :raises Unavailable: a store was unavailable; the outcome is unknown as above.
    """
    txn_id = job.txn_id
    if txn_id is None:
        return
    coordinator = await application_coordinator(host)
    staged = [message for message in messages if message is not None and message.txn == job.txn]

    async def decide() -> None:
        if len(staged) != len(messages):
            raise BatchNotCommitted(f"{len(messages) - len(staged)} tasks of the job did not write in its transaction")
        if job.batch is not None:
            await _record_version(coordinator, job.batch, txn_id)
        # A newer job aborts this transaction before it begins its own: the first change of the header decides.
        await commit_branches(coordinator, txn_id, staged, job.batch, "the job")

    try:
        await retry_unavailable(host, decide)
    except Conflict:
        # A retry after an unknown outcome may find its own commit, or a newer job that began after it.
        if not await retry_unavailable(host, lambda: is_committed(coordinator, txn_id, staged)):
            await abort_open(coordinator, {txn_id: job.batch})
            raise
    await settle(coordinator, txn_id)


async def abort_job(host: Host, job: BatchJob) -> None:
    """Abort the job's transaction, unless it is committed."""
    if job.txn_id is not None:
        await abort_open(await application_coordinator(host), {job.txn_id: job.batch})


async def _is_replay(coordinator: IApplicationCoordinator, job: BatchJob) -> bool:
    """Return whether the job's version was committed, and log it; ApplicationMixed for the application of a stream."""
    assert job.application is not None
    application = await coordinator.application(job.application)
    if application is None:
        return False
    require_kind(application, JOBS)
    last = judge_job(application, job.version)
    if last is None:
        return False
    # A warning, because Spark's Python processes show warnings by default.
    _LOG.warning(
        "txnVersion %d of txnAppId %s was committed before (the last one is %d): this job writes nothing",
        job.version,
        job.application,
        last,
    )
    return True


async def _record_version(coordinator: IApplicationCoordinator, batch: BatchID, txn_id: TxnID) -> None:
    """Put the version into the transaction; Fenced is more specific than the abort by a newer job."""
    application = await coordinator.application(batch.application)
    if application is None or application.run != batch.run or application.txn_id != txn_id:
        raise Fenced(f"application {batch.application}", "a newer job")
    require_kind(application, JOBS)
    try:
        await coordinator.finish_batch(batch, txn_id, ())
    except (TransactionConflict, TransactionNotFound) as error:
        raise BatchNotCommitted(f"the job was not committed: {error}") from error


class JobWriter(DataSourceArrowWriter):
    """The sink of a batch job, which is one transaction over all its output topics."""

    def __init__(self, options: SinkOptions, job: BatchJob) -> None:
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
        writer, branch = open_attempt_writer(host, self._options, self._job.txn_id, name)
        write_batches(writer, iterator)
        return Staged(self._job.txn, branch, writer.rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide the job; a normal return means that it is committed. After an error Spark calls ``abort``."""
        process.run(commit_job(process.host(self._options.stores), self._job, staged_messages(messages)))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Abort the job's transaction, unless it is committed."""
        process.run(abort_job(process.host(self._options.stores), self._job))
