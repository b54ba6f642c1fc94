"""The coordinator ``log``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from zope.interface import implementer

from txnframework.errors import (
    Closed,
    InvalidInput,
    InvalidTransactionState,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
    Unavailable,
)
from txnframework.interfaces import ITransactionCoordinator, IWatch
from txnframework.model import (
    Begin,
    End,
    Limit,
    OpenQuery,
    Outstanding,
    Participant,
    State,
    SweepResult,
    Transaction,
    TxnID,
)
from txnframework.model.ids import COORDINATOR_BITS, LOG_FAMILY, LOG_FAMILY_BIT
from txnframework.plugin import CoordinatorContext, SharedTransactionIds, TransactionIds, options_as
from txnframework.runtime.tasks import first_completed
from txnframework_legacy.coordinator.completion import TransactionCompletion
from txnframework_legacy.coordinator.log import TransactionLogs
from txnframework_legacy.coordinator.records import AddPartition, AddSubscription, AnyRecord, New
from txnframework_legacy.coordinator.state import LoggedTransaction
from txnframework_legacy.coordinator.sweeper import TransactionSweeper
from txnframework_legacy.ledger_names import delete_topic_ledgers
from txnframework_legacy.log.switched_writer import LogWriterFactory
from txnframework_legacy.log.switches import LogKind, SwitchWatcher
from txnframework_legacy.options import CoordinatorOptions


@implementer(ITransactionCoordinator)
class LogCoordinator:
    """
    Begins a transaction with one record in a log, and ends it in two phases.

    The process keeps in memory the state of the transactions that are not forgotten yet. Reading the logs restores it.
    """

    family: str = LOG_FAMILY

    def __init__(self, context: CoordinatorContext) -> None:
        options = options_as(context.options, CoordinatorOptions)
        self._environment = context.environment
        self._store = context.store
        self._ledgers = context.ledgers
        self._closed = asyncio.Event()
        block, attempts = options.id_block_size, options.attempts_max
        self._ids: TransactionIds | SharedTransactionIds
        if context.share is None:
            ids = tuple(range(LOG_FAMILY_BIT, LOG_FAMILY_BIT + context.transactions.coordinators))
            own = ids[context.environment.random_bits(COORDINATOR_BITS) % len(ids)]
            self._ids = TransactionIds(context.store, own, block, attempts)
        else:
            self._ids = SharedTransactionIds(context, context.share, block, attempts)
        switches = SwitchWatcher(context.store, context.environment, LogKind.TRANSACTIONS)
        writers = LogWriterFactory(switches, context.environment, options.batching, context.metrics)
        self._logs = TransactionLogs(context.ledgers, writers)
        self._completion = TransactionCompletion(
            self._logs, context.participants, context.environment, options, self._closed
        )
        self._sweeper = TransactionSweeper(self._logs, self._completion, context.transactions, options)
        self._end_timeout_ms = context.transactions.end_timeout_ms

    # -- one transaction ------------------------------------------------------------------------------

    async def begin(self, request: Begin) -> Transaction:
        """Begin a transaction with one record."""
        self._require_open()
        if request.co_commit:
            raise InvalidInput("transactions of the log family cannot be committed together with rows")
        txn_id = await self._ids.next_id()
        log = await self._logs.make(txn_id.coordinator)
        now_ms = self._environment.now_ms()
        record = New(
            number=txn_id.number,
            created_ms=now_ms,
            deadline_ms=now_ms + request.timeout_ms,
            principal=request.principal,
            session=request.session,
        )
        try:
            found = (await log.append(record)).get(txn_id.number)
        except OutcomeUnknown:
            found = None
            try:
                found = (await log.catch_up()).get(txn_id.number)
            except (Unavailable, Closed) as error:
                raise OutcomeUnknown(f"transaction {txn_id} may have begun; its log could not be read") from error
        if found is None:
            raise OutcomeUnknown(f"transaction {txn_id} may have begun; its log does not contain it")
        return found.as_described()

    async def enlist(self, txn_id: TxnID, participants: frozenset[Participant]) -> None:
        """Record the participants that are not recorded yet."""
        self._require_open()
        found = await self._logs.find_logged(txn_id)
        if found is None:
            raise TransactionNotFound(txn_id)
        log, logged = found
        missing = participants - logged.transaction.participants
        for record in _additions(txn_id, missing) if logged.state is State.OPEN else ():
            after = (await log.append(record)).get(txn_id.number)
            if after is None:
                raise TransactionNotFound(txn_id)
            logged = after
        if logged.state is not State.OPEN and participants:
            # Raised even if the participants are recorded already: the caller is about to write.
            raise TransactionConflict(txn_id, f"it has ended ({logged.as_described().state.value}); begin another one")

    async def end(self, request: End) -> Transaction:
        """
        Decide the transaction and settle it at every participant.

        :raises EndTransactionTimeout: a participant did not confirm within ``end_timeout_ms``; the decision is stored.
        """
        self._require_open()
        log, logged = await self._completion.decide(request)
        if logged.settling:
            logged = await self._completion.finish(log, logged, self._end_timeout_ms)
        return logged.as_described()

    async def settle(self, txn_id: TxnID) -> SweepResult:
        """Try once to settle a decided transaction at each of its participants."""
        self._require_open()
        found = await self._logs.find_logged(txn_id)
        if found is None:
            return SweepResult(0, 0)
        log, logged = found
        if logged.state is State.OPEN:
            raise InvalidTransactionState(txn_id, State.OPEN, "it has not ended, so there is nothing to settle")
        left = await self._completion.settle_once(log, logged)
        return SweepResult(len(logged.transaction.participants) - left if logged.settling else 0, left)

    async def describe(self, txn_id: TxnID) -> Transaction:
        """Return the transaction with its participants; a decided transaction is returned as ended."""
        self._require_open()
        found = await self._logs.find_logged(txn_id)
        if found is None:
            raise TransactionNotFound(txn_id)
        return found[1].as_described()

    # -- many transactions ----------------------------------------------------------------------------

    async def list_open(self, query: OpenQuery) -> tuple[Transaction, ...]:
        """Return open transactions, oldest deadline first."""
        self._require_open()
        latest_ms = self._environment.now_ms() - query.age_ms_min
        behind = (-1, TxnID(0, 0)) if query.after is None else _due(await self.describe(query.after))
        found = [logged.transaction for logged in await self._all() if logged.state is State.OPEN]
        found = [one for one in found if one.created_ms <= latest_ms and _due(one) > behind]
        return tuple(sorted(found, key=_due)[: query.limit.items])

    async def outstanding(self, after: TxnID | None, limit: Limit) -> tuple[Outstanding, ...]:
        """Return the decided transactions that are not known to be settled at every participant, by id."""
        self._require_open()
        settling = [logged.as_described() for logged in await self._all() if logged.settling]
        found = sorted((one for one in settling if after is None or one.txn_id > after), key=lambda one: one.txn_id)
        return tuple(Outstanding(one.txn_id, one, len(one.participants)) for one in found[: limit.items])

    async def watch_ended(self, txn_ids: frozenset[TxnID]) -> dict[TxnID, State]:
        """Wait until one of the transactions has ended; the logs are read only after something was appended to them."""
        watches: list[IWatch] = []
        try:
            for coordinator in sorted({txn_id.coordinator for txn_id in txn_ids}):
                log = await self._logs.find(coordinator)
                if log is not None:
                    watches.append(await log.watch())
            while txn_ids:
                self._require_open()
                ended: dict[TxnID, State] = {}
                for txn_id in sorted(txn_ids):
                    found = await self._logs.find_logged(txn_id)
                    state = State.COMMITTED if found is None else found[1].as_described().state
                    if state is not State.OPEN:
                        ended[txn_id] = state
                if ended:
                    return ended
                await first_completed(*(watch.changed() for watch in watches), self._closed.wait())
            return {}
        finally:
            for watch in watches:
                await watch.close()

    async def expire(self, now_ms: int) -> SweepResult:
        """Abort the transactions whose deadline has passed, and finish those that were left half ended."""
        self._require_open()
        return await self._sweeper.expire(now_ms)

    async def collect(self, now_ms: int) -> SweepResult:
        """Forget transactions whose retention has ended, finish decided ones, and trim the logs."""
        self._require_open()
        return await self._sweeper.collect(now_ms)

    async def forget_segment(self, segment: str, upto_ledger_id: int | None) -> None:  # noqa: ARG002
        """Delete the ledgers beside a segment; their names identify those of the deleted topic."""
        self._require_open()
        await delete_topic_ledgers(self._store, self._ledgers, segment)

    async def close(self) -> None:
        """Stop; pending calls of ``watch_ended`` raise ``Closed``."""
        self._closed.set()
        await self._logs.close()

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Closed("the coordinator was closed")

    async def _all(self) -> list[LoggedTransaction]:
        """Return every transaction of every log."""
        return [logged for log in await self._logs.all() for logged in (await log.catch_up()).all()]


def _due(transaction: Transaction) -> tuple[int, TxnID]:
    return transaction.deadline_ms, transaction.txn_id


def _additions(txn_id: TxnID, participants: frozenset[Participant]) -> Iterable[AnyRecord]:
    """Return the records that add these participants: one for topics, one for subscriptions."""
    segments = sorted(one.segment for one in participants if not one.subscription)
    subscriptions = sorted((one.segment, one.subscription) for one in participants if one.subscription)
    if segments:
        yield AddPartition(number=txn_id.number, segments=segments)
    if subscriptions:
        yield AddSubscription(number=txn_id.number, subscriptions=subscriptions)
