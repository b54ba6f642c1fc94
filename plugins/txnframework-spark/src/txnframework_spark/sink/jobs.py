"""A batch job's transaction: begun on the driver before its tasks, decided there after them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from txnframework.broker import Host
from txnframework.errors import Conflict, Fenced, TransactionConflict, TransactionNotFound
from txnframework.interfaces import IApplicationCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.transactions import BatchID, Begin
from txnframework_spark.errors import BatchNotCommitted
from txnframework_spark.microbatch.applications import begin, coordinator_of
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.outage import outlast
from txnframework_spark.sink.ending import abort_open, commit_branches, is_committed, settle
from txnframework_spark.sink.judging import JOBS, judge_job, require_kind
from txnframework_spark.sink.staged import Staged
from txnframework_spark.sink.staging import layout_of

_LOG: Final = logging.getLogger("txnframework_spark.sink")
_RUN_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class Job:
    """
    One batch job, as its tasks get it from the driver.

    ``run``: its random name. ``txn`` None: without a transaction. ``replay``: what it would write was committed by an
    earlier job, so it writes nothing.
    """

    run: str
    txn: str | None = None
    application: str | None = None
    version: int = 0
    replay: bool = False

    @property
    def txn_id(self) -> TxnID | None:
        """The transaction, as an id."""
        return None if self.txn is None else TxnID.parse(self.txn)

    @property
    def batch(self) -> BatchID | None:
        """How the coordinator knows the job, None where it has no application."""
        if self.application is None:
            return None
        return BatchID(self.application, JOBS, self.run, self.version)


async def begin_job(host: Host, options: SinkOptions) -> Job:
    """
    Begin the job's transaction, unless what it writes was committed before.

    A job that dies leaves it open: the next one of its application ends it, at the latest its timeout does. Beginning
    ends the job that the application still has underway: its commit will raise.

    :raises ApplicationMixed: the application is a stream's.
    :raises TopicMissing: the topic of the option is not there.
    """
    run = f"{host.environment.random_bits(_RUN_BITS):032x}"
    if options.topic is not None:
        await layout_of(host, options.topic)
    if not options.transactional:
        return Job(run)
    coordinator = await coordinator_of(host)
    if options.application_id is None or options.version is None:
        # Asked again after an unknown outcome, it leaves one open that nobody knows; that one times out.
        alone = await outlast(host, lambda: coordinator.begin(Begin(options.transaction_timeout_ms)))
        return Job(run, str(alone.txn_id))
    replay = Job(run, None, options.application_id, options.version, replay=True)
    # Before anything is changed: a job that is a replay, or in the wrong place, disturbs nobody.
    if await outlast(host, lambda: _is_replay(coordinator, replay)):
        return replay
    batch = BatchID(options.application_id, JOBS, run, options.version)
    began = await outlast(host, lambda: begin(host, batch, options.transaction_timeout_ms))
    try:
        # The job that it replaced may have committed meanwhile, or a stream.
        if not await outlast(host, lambda: _is_replay(coordinator, replay)):
            return Job(run, str(began), options.application_id, options.version)
    except BaseException:
        await abort_open(coordinator, [began])
        raise
    await abort_open(coordinator, [began])
    return replay


async def commit_job(host: Host, job: Job, messages: Sequence[Staged | None]) -> None:
    """
    Commit what the tasks wrote, all of it by one compare-and-set.

    :raises Fenced: a newer job of the application has begun; nothing counts.
    :raises BatchNotCommitted: the transaction has ended, or a task's message is missing; nothing counts.
    :raises OutcomeUnknown: not even asking again could tell. With txnVersion the same job, started again, will.
        Unavailable likewise.
    """
    txn_id = job.txn_id
    if txn_id is None:
        return
    coordinator = await coordinator_of(host)
    staged = [message for message in messages if message is not None and message.txn == job.txn]

    async def decide() -> None:
        if len(staged) != len(messages):
            raise BatchNotCommitted(f"{len(messages) - len(staged)} tasks of the job wrote elsewhere or not at all")
        if job.batch is not None:
            await _record_version(coordinator, job.batch, txn_id)
        # A newer job aborts this transaction before it begins its own: whichever comes first at the header.
        await commit_branches(coordinator, txn_id, staged, "the job")

    try:
        await outlast(host, decide)
    except Conflict:
        # Asked again after an unknown outcome, it may meet its own commit, and a newer job behind it.
        if not await outlast(host, lambda: is_committed(coordinator, txn_id, staged)):
            await abort_open(coordinator, [txn_id])
            raise
    await settle(coordinator, txn_id)


async def abort_job(host: Host, job: Job) -> None:
    """End the job's transaction, unless it was committed after all."""
    if job.txn_id is not None:
        await abort_open(await coordinator_of(host), [job.txn_id])


async def _is_replay(coordinator: IApplicationCoordinator, job: Job) -> bool:
    """Return whether the job's version was committed, saying so in the log; ApplicationMixed for a stream's."""
    assert job.application is not None
    application = await coordinator.application(job.application)
    if application is None:
        return False
    require_kind(application, JOBS)
    last = judge_job(application, job.version)
    if last is None:
        return False
    # A warning, for that is what Spark's Python processes show without being told to.
    _LOG.warning(
        "txnVersion %d of txnAppId %s was committed before (the last one is %d): this job writes nothing",
        job.version,
        job.application,
        last,
    )
    return True


async def _record_version(coordinator: IApplicationCoordinator, batch: BatchID, txn_id: TxnID) -> None:
    """Put the version into the transaction; Fenced tells more than the abort that a newer job has made of it."""
    application = await coordinator.application(batch.application)
    if application is None or application.run != batch.run or application.txn_id != txn_id:
        raise Fenced(f"application {batch.application}", "a newer job")
    require_kind(application, JOBS)
    try:
        await coordinator.finish_batch(batch, txn_id, ())
    except (TransactionConflict, TransactionNotFound) as error:
        raise BatchNotCommitted(f"the job was not committed: {error}") from error
