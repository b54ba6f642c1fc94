"""The commit of one micro-batch, in the sink's process on the driver after all its tasks have succeeded.

The order of steps matters: *put* the acknowledgments, *then* read the application record and the subscriptions' epochs
again, *then* decide by one compare-and-set:

* A newer run raises the epoch first and scans for acknowledgments second. If the scan finds ours, the newer run aborts
  this transaction. Otherwise its epoch was raised before we read it, and we stop.
* Without the compare-and-set, everything before it has no effect. Everything after it only makes the outcome visible
  sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from pyspark.sql.datasource import WriterCommitMessage

from txnframework.broker import Host
from txnframework.errors import (
    Conflict,
    Fenced,
    InvalidTransactionState,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
    Unavailable,
)
from txnframework.interfaces import IApplicationCoordinator, IMetadataStore, ITransactionCoordinator
from txnframework.model.acks import Ack, AckRequest, ProcessedRange
from txnframework.model.ids import Branch, TxnID
from txnframework.model.transactions import Action, Application, BatchID, End, SourceRange, State
from txnframework_spark.errors import BatchNotCommitted, Unsupported
from txnframework_spark.microbatch.batch import MicroBatch, application_coordinator, batch_id
from txnframework_spark.microbatch.pause import ACKS_PUT, COMMITTED, JUDGED, SETTLED, Pauses
from txnframework_spark.microbatch.registration import Range, Registration, load_registrations, load_subscription
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.process import retry_unavailable
from txnframework_spark.sink.verdict import (
    AcknowledgedRange,
    BatchVerdict,
    judge_batch,
    judge_by_version,
    require_kind,
    require_whole_state,
)


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The output of one successful task attempt: durable under ``branch`` of ``txn``, and it counts if listed.

    ``txn`` None: written without a transaction, or nothing was written. ``batch``, ``application``: of a stream.
    """

    txn: str | None
    branch: int
    rows: int
    batch: MicroBatch | None = None
    application: str | None = None

    @property
    def txn_id(self) -> TxnID | None:
        """The id of the transaction."""
        return None if self.txn is None else TxnID.parse(self.txn)


async def require_no_acknowledgments(store: IMetadataStore, batch: MicroBatch) -> None:
    """Raise Unsupported if the batch reads a subscription: it would never be acknowledged."""
    for registration in await load_registrations(store, batch):
        raise Unsupported(
            f"subscription {registration.subscription} of {registration.topic} is acknowledged in the sink's"
            " transaction, and with transactional=false there is no transaction: leave out groupId, so that only the"
            " checkpoint records progress, or leave out transactional=false"
        )


async def commit_branches(
    coordinator: ITransactionCoordinator, txn_id: TxnID, staged: Iterable[Staged], batch: BatchID | None, what: str
) -> None:
    """Commit all staged rows by one compare-and-set of the header, which lists the branches of the tasks.

    :param batch: the micro-batch, or the job of an application.
    :raises BatchNotCommitted: the transaction has ended; none of the rows counts.
    """
    branches = frozenset({0}) | {message.branch for message in staged}
    try:
        await coordinator.end(End(txn_id, Action.COMMIT, branches=branches, batch=batch))
    except (InvalidTransactionState, TransactionNotFound) as error:
        raise BatchNotCommitted(f"{what} was not committed: {error}") from error


async def is_committed(coordinator: ITransactionCoordinator, txn_id: TxnID, staged: Iterable[Staged]) -> bool:
    """Return whether the transaction is committed with the staged branches; only its decider commits it so."""
    try:
        found = await coordinator.describe(txn_id)
    except TransactionNotFound:
        return False
    return found.state is State.COMMITTED and all(found.counts(message.branch) for message in staged)


async def settle(coordinator: ITransactionCoordinator, txn_id: TxnID) -> None:
    """Settle the transaction immediately; if that fails, the next reader settles it."""
    with contextlib.suppress(Unavailable, OutcomeUnknown):
        await coordinator.settle(txn_id)


async def abort_open(coordinator: ITransactionCoordinator, batches: Mapping[TxnID, BatchID | None]) -> None:
    """Abort those transactions that are open; committed ones are unaffected. ``batches``: as in ``commit_branches``."""
    for txn_id, batch in sorted(batches.items(), key=lambda one: one[0]):
        # Unavailable: the next batch, run or job aborts it, at the latest its timeout.
        with contextlib.suppress(InvalidTransactionState, TransactionNotFound, Unavailable, OutcomeUnknown):
            await coordinator.end(End(txn_id, Action.ABORT, batch=batch))
            await coordinator.settle(txn_id)


S = TypeVar("S")
T = TypeVar("T")

_RANGES_AT_A_TIME: Final = 16
"""The number of segments whose cursors are read or acknowledged concurrently."""


async def commit_staged(host: Host, options: SinkOptions, messages: Sequence[Staged | None], batch: int) -> None:
    """
    Commit the batch, or return normally if all of it was committed before.

    :raises BatchNotCommitted: its tasks wrote in different transactions, or its transaction has ended; nothing counts.
    :raises Fenced: a newer run took over; nothing counts.
    :raises Diverged: checkpoint and subscription contradict each other; nothing counts.
    :raises MixedBatch: a part of the batch was committed before; nothing counts.
    :raises NotJudgeable: it is unknown whether the batch was committed before; nothing counts.
    :raises StateLost: the state does not belong to the last committed batch; nothing counts.
    :raises OutcomeUnknown: all retries had an unknown outcome; a replay of the batch determines it.
    :raises Unavailable: a store was unavailable; a replay of the batch determines the outcome.
    """
    staged = [message for message in messages if message is not None]
    first = staged[0] if staged else None
    if first is None or first.batch is None:
        return
    if not options.transactional:
        await require_no_acknowledgments(host.metadata, first.batch)
        return
    wrote = [message for message in staged if message.txn is not None]
    one = {(message.application, message.batch, message.txn) for message in wrote}
    if len(one) != 1 or len(staged) != len(messages) or first.batch.batch != batch:
        await abort_staged(host, staged)
        raise BatchNotCommitted(
            f"the tasks of batch {batch} wrote in different transactions, because the first transaction ended during"
            " the batch"
        )
    decision = _BatchCommit(host, options, wrote, first.batch)
    try:
        # A retry is idempotent: it finds the acknowledgments of the first attempt, or a batch that is a replay.
        await retry_unavailable(host, decision.run)
    except Conflict as error:
        # A retry after an unknown outcome may find that its own commit took effect. It may also find that a late task
        # has begun the batch again after that commit.
        if not isinstance(error, Fenced) and await retry_unavailable(host, decision.is_committed):
            return
        await abort_staged(host, staged)
        raise


async def abort_staged(host: Host, staged: Sequence[Staged]) -> None:
    """Abort every transaction that the messages name and that is open; committed ones are unaffected."""
    batches = {
        message.txn_id: None
        if message.batch is None
        else batch_id(message.application or message.batch.query, message.batch)
        for message in staged
        if message.txn_id is not None
    }
    if batches:
        await abort_open(await application_coordinator(host), batches)


class _BatchCommit:
    """The decision about one batch, all of whose tasks wrote in one transaction."""

    def __init__(self, host: Host, options: SinkOptions, staged: Sequence[Staged], facts: MicroBatch) -> None:
        first = staged[0]
        assert first.txn_id is not None
        self._host = host
        self._options = options
        self._staged = staged
        self._facts = facts
        self._batch = batch_id(first.application or facts.query, facts)
        self._txn_id: TxnID = first.txn_id

    async def run(self) -> None:
        coordinator = await application_coordinator(self._host)
        application, registrations = await _both(
            self._current(coordinator), load_registrations(self._host.metadata, self._facts)
        )
        require_kind(application, self._facts.query)
        if self._options.stateful and not self._options.reset:
            require_whole_state(application, self._batch)
        verdict = judge_batch(await self._against_cursors(registrations))
        if verdict is BatchVerdict.UNACKNOWLEDGED:
            verdict = self._judge_by_version(application)
        if verdict is BatchVerdict.REPLAY:
            # A newer run, even one of another application, may have moved the cursor. What it committed is not this
            # run's batch, and a success would let this run continue.
            await self._check_epochs(registrations)
            await abort_staged(self._host, self._staged)
            return
        pauses = Pauses.from_environment()
        doing = {"query": self._facts.query, "run": self._facts.run, "txn": self._txn_id}
        pauses.reach(JUDGED, self._facts.batch, **doing)
        try:
            # In any order: a crash between them leaves an open transaction, and neither has an effect without a commit.
            await _both(
                self._acknowledge(registrations),
                coordinator.finish_batch(self._batch, self._txn_id, _source_ranges(registrations)),
            )
        except (TransactionConflict, TransactionNotFound) as error:
            raise BatchNotCommitted(f"batch {self._facts.batch} cannot be acknowledged: {error}") from error
        pauses.reach(ACKS_PUT, self._facts.batch, **doing)
        await _both(self._current(coordinator), self._check_epochs(registrations))
        await commit_branches(coordinator, self._txn_id, self._staged, self._batch, f"batch {self._facts.batch}")
        # A kill between here and Spark's own record of the batch causes a replay, which the cursors reveal.
        pauses.reach(COMMITTED, self._facts.batch, **doing)
        await settle(coordinator, self._txn_id)
        pauses.reach(SETTLED, self._facts.batch, **doing)

    async def is_committed(self) -> bool:
        """Return whether the transaction is committed with these branches."""
        return await is_committed(await application_coordinator(self._host), self._txn_id, self._staged)

    async def _current(self, coordinator: IApplicationCoordinator) -> Application:
        """Return the application record; raise if it no longer names this run and this transaction."""
        application = await coordinator.application(self._batch.application)
        if application is None or application.txn_id is None:
            raise BatchNotCommitted(f"application {self._batch.application} no longer exists")
        if application.run != self._facts.run:
            raise Fenced(f"application {self._batch.application}", f"run {application.run}")
        if application.txn_id != self._txn_id:
            raise BatchNotCommitted(
                f"batch {self._facts.batch} was begun again in transaction {application.txn_id} while it was written"
            )
        return application

    async def _against_cursors(self, registrations: Sequence[Registration]) -> list[AcknowledgedRange]:
        async def look(registration: Registration, planned: Range) -> AcknowledgedRange:
            subscription = await self._host.subscription(registration.topic, registration.subscription, planned.segment)
            # A committed batch may not have reached its cursor yet; the cursor alone would not show it.
            await subscription.pending_acks.recover()
            cursor = await subscription.cursor.load()
            return AcknowledgedRange(
                registration.topic, registration.subscription, planned, cursor.mark_delete, cursor.incarnation
            )

        return await _for_each_range(registrations, look)

    def _judge_by_version(self, application: Application) -> BatchVerdict:
        """Judge a batch without acknowledgments by the numbers of the committed batches."""
        rows = sum(message.rows for message in self._staged)
        return judge_by_version(application, self._batch, rows, self._options.reset)

    async def _acknowledge(self, registrations: Sequence[Registration]) -> None:
        async def add(registration: Registration, planned: Range) -> None:
            subscription = await self._host.subscription(registration.topic, registration.subscription, planned.segment)
            processed = ProcessedRange(
                self._facts.query, self._facts.batch, planned.start, planned.end, registration.epoch
            )
            ack = Ack(planned.end, cumulative=True)
            request = AckRequest(Branch(self._txn_id), (ack,), planned.incarnation or 0, processed)
            await subscription.pending_acks.add(request)

        await _for_each_range(registrations, add)

    async def _check_epochs(self, registrations: Sequence[Registration]) -> None:
        for registration in registrations:
            _, record = await load_subscription(self._host.metadata, registration.topic, registration.subscription)
            if record.epoch != registration.epoch:
                raise Fenced(f"subscription {registration.subscription} of {registration.topic}")


async def _both(first: Awaitable[S], second: Awaitable[T]) -> tuple[S, T]:
    """Await both concurrently and return the results; errors are raised when both have ended, in order."""
    one, other = await asyncio.gather(first, second, return_exceptions=True)
    for result in (one, other):
        if isinstance(result, BaseException):
            raise result
    return cast("tuple[S, T]", (one, other))


async def _for_each_range(
    registrations: Sequence[Registration], work: Callable[[Registration, Range], Awaitable[T]]
) -> list[T]:
    """Run ``work`` for each range, some concurrently, and return the results; errors are raised in order."""
    found: list[T] = []
    every = [(registration, planned) for registration in registrations for planned in registration.ranges]
    for first in range(0, len(every), _RANGES_AT_A_TIME):
        some = every[first : first + _RANGES_AT_A_TIME]
        for result in await asyncio.gather(*(work(*one) for one in some), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            found.append(result)
    return found


def _source_ranges(registrations: Sequence[Registration]) -> tuple[SourceRange, ...]:
    return tuple(
        SourceRange(
            registration.topic,
            registration.subscription,
            {planned.segment: planned.start for planned in registration.ranges},
            {planned.segment: planned.end for planned in registration.ranges},
        )
        for registration in registrations
    )
