"""The coordinator ``metadata``: a transaction is one record in the metadata store."""

from __future__ import annotations

import asyncio
import logging

import msgspec
from zope.interface import implementer

from txnframework.errors import (
    Closed,
    Corrupt,
    InvalidInput,
    OutcomeUnknown,
    TransactionNotFound,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import (
    IApplicationCoordinator,
    ICoCommitStore,
    IDatabaseTransaction,
    IJointCoordinator,
    IWatch,
)
from txnframework.model import index_keys
from txnframework.model.ids import TxnID
from txnframework.model.indexes import TXN_BY_DEADLINE
from txnframework.model.joint import JointCommit, JointCommitted
from txnframework.model.metadata import Expect, IndexRange, KeyRange, Put
from txnframework.model.paths import header_key, operations_prefix
from txnframework.model.positions import Limit
from txnframework.model.records import CO_COMMIT_FORMAT, FORMAT, TransactionHeader, encode
from txnframework.model.transactions import (
    Action,
    Application,
    BatchID,
    Begin,
    End,
    OpenQuery,
    Outstanding,
    Participant,
    SourceRange,
    State,
    SweepResult,
    Transaction,
)
from txnframework.plugin import CoordinatorContext, SharedTransactionIds, TransactionIds, options_as
from txnframework_metadata.coordinator.applications import Applications
from txnframework_metadata.coordinator.co_commit import co_commit_store, commit_with
from txnframework_metadata.coordinator.joint_commit import commit_jointly
from txnframework_metadata.coordinator.outstanding_transactions import find_outstanding
from txnframework_metadata.coordinator.settled_commit import commit_settled
from txnframework_metadata.coordinator.settling_group import SettlingGroup
from txnframework_metadata.coordinator.settling_step import OwnOutcome
from txnframework_metadata.coordinator.sweeps import Sweeps
from txnframework_metadata.coordinator.unfinished_commit import close_branches
from txnframework_metadata.options import CoordinatorOptions
from txnframework_metadata.records.headers import (
    FAMILY,
    Header,
    TransactionCache,
    end_transaction,
    header_indexes,
    header_of,
    read_header,
    transaction_of,
)
from txnframework_metadata.records.operations import are_together, scan_operations
from txnframework_metadata.records.shared_operations import ISharedOperationsOwner, SharedOperations
from txnframework_metadata.records.views import participants_of, parts_of
from txnframework_metadata.watches import close_all, first_of

_LOG = logging.getLogger(__name__)

_FIRST_COORDINATOR = 0
# How many ids are kept where they cannot be reserved once rows are written: many transactions may begin at a time.
_IDS_READY = 100


@implementer(IApplicationCoordinator, IJointCoordinator, ISharedOperationsOwner)
class MetadataCoordinator:
    """
    Begins a transaction with one put and ends it with one compare-and-set.

    Its memory contains blocks of reserved ids, and the headers that this process wrote. Both only save requests, so any
    number of processes may serve the same transactions.
    """

    family: str = FAMILY

    def __init__(self, context: CoordinatorContext) -> None:
        options = options_as(context.options, CoordinatorOptions)
        self._store = context.store
        self._environment = context.environment
        self._transactions = context.transactions
        self._options = options
        self._ids: TransactionIds | SharedTransactionIds
        if context.share is None:
            self._ids = TransactionIds(context.store, _FIRST_COORDINATOR, options.id_block_size, options.attempts_max)
        else:
            self._ids = SharedTransactionIds(context, context.share, options.id_block_size, options.attempts_max)
        self.operations: SharedOperations = SharedOperations(context.store, options.begun_max, options.page_records)
        self._ended: TransactionCache[Transaction] = TransactionCache(options.begun_max)
        self._applications = Applications(context.store, context.environment, options, self.begin)
        self._sweeps = Sweeps(
            context.store,
            context.participants,
            self._applications,
            context.environment,
            context.transactions,
            options,
            self.operations,
        )
        self._settling_group = SettlingGroup(context.store, self.operations, options.page_records)
        self.operations.settle_own = self._settle_own
        self._ledgers = context.ledgers
        self.has_one_database: bool = are_together(context.store, context.ledgers)
        self._closed = asyncio.Event()

    # -- one transaction ------------------------------------------------------------------------------

    async def begin(self, request: Begin) -> Transaction:
        """Return a new open transaction; its id never repeats."""
        self._require_open()
        if not 0 < request.timeout_ms <= self._transactions.timeout_ms_max:
            raise InvalidInput(
                f"a timeout of {request.timeout_ms} ms is not between 1 and {self._transactions.timeout_ms_max}"
                " (transactions.timeout_ms_max)"
            )
        if request.co_commit:
            co_commit_store(self._store)
        txn_id = await self._ids.next_id()
        now_ms = self._environment.now_ms()
        document = TransactionHeader(
            format=CO_COMMIT_FORMAT if request.co_commit else FORMAT,
            state=State.OPEN.value,
            timeout_ms=now_ms + request.timeout_ms,
            created_ms=now_ms,
            principal=request.principal,
            session=request.session,
            co_commit=True if request.co_commit else msgspec.UNSET,
        )
        put = Put(header_key(txn_id), encode(document), Expect.ABSENT, header_indexes(txn_id, document))
        try:
            version = await self._store.put(put)
        except OutcomeUnknown:
            # No other process knows the id: a header stored under it, now or after a retry, is this one.
            try:
                await self._store.put(put)
            except VersionMismatch as error:
                if error.actual is None:
                    raise
            except (Unavailable, Closed) as error:
                raise OutcomeUnknown(f"transaction {txn_id} may have begun; its id was not returned") from error
            return transaction_of(txn_id, document)
        begun = transaction_of(txn_id, document)
        self.operations.begun.note(txn_id, Header(begun, version, document, put.key, operations_prefix(txn_id)))
        return begun

    async def enlist(self, txn_id: TxnID, participants: frozenset[Participant]) -> None:
        """Do nothing: the operation records already name the participants."""

    async def end(self, request: End) -> Transaction:
        """Decide by one compare-and-set; repeating the same End succeeds."""
        self._require_open()
        begun, written = self.operations.begun.take(request.txn_id), self.operations.own.take(request.txn_id)
        if request.unfinished and request.action is Action.COMMIT:
            await close_branches(self._store, self._ledgers, request, self._options)
            begun = None
        ended: Transaction | None = None
        unknown: OutcomeUnknown | None = None
        if begun is not None and written is not None:
            try:
                ended = await commit_settled(self._store, self._environment, request, begun, written, self.operations)
            except OutcomeUnknown as error:
                begun, unknown = None, error
        if ended is None:
            ended = await end_transaction(
                self._store, self._environment, request, self._options.attempts_max, begun, unknown
            )
        self._ended.note(ended.txn_id, ended)
        return ended

    async def end_with(self, request: End, transaction: IDatabaseTransaction) -> Transaction:
        """Commit by the COMMIT of a database transaction, which also commits rows of the application."""
        self._require_open()
        begun = self.operations.begun.take(request.txn_id)
        ended = await commit_with(
            self._store, self._environment, request, transaction, begun, self._options.attempts_max
        )
        self._ended.note(ended.txn_id, ended)
        return ended

    async def reserve_id(self) -> TxnID:
        """Return an id for a transaction that begins and commits in one step."""
        self._require_open()
        return await self._ids.next_id()

    async def prepare(self) -> None:
        """Keep some ids reserved, if a row of the application keeps the store from writing."""
        self._require_open()
        if ICoCommitStore.providedBy(self._store) and self._store.has_one_writer:
            await self._ids.keep_ready(_IDS_READY)

    async def join(self, connection: object) -> IDatabaseTransaction:
        """Join the database transaction of the application's connection."""
        self._require_open()
        return await co_commit_store(self._store).join(connection)

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        """Begin and commit transactions in one step, with their entries and acknowledgments."""
        self._require_open()
        return await commit_jointly(
            self._store,
            self._environment,
            request,
            self._options.attempts_max,
            self._transactions.retention_ms,
            transaction,
        )

    async def settle(self, txn_id: TxnID) -> SweepResult:
        """Make an ended transaction's outcome take effect at every participant now."""
        self._require_open()
        ended = self._ended.take(txn_id)
        if ended is not None and (settled := await self._settle_own(ended)):
            return SweepResult(settled, 0)
        return await self._sweeps.settle(txn_id, ended)

    async def describe(self, txn_id: TxnID) -> Transaction:
        """Return the transaction with the participants that its operations name."""
        self._require_open()
        header = await read_header(self._store, txn_id)
        if header is None:
            raise TransactionNotFound(txn_id)
        operations = await scan_operations(self._store, txn_id, self._options.page_records)
        return msgspec.structs.replace(
            header.transaction, participants=participants_of(operations), parts=parts_of(operations)
        )

    # -- many transactions ----------------------------------------------------------------------------

    async def list_open(self, query: OpenQuery) -> tuple[Transaction, ...]:
        """Return open transactions, oldest deadline first, without their participants."""
        self._require_open()
        left: IndexRange | KeyRange | None = await self._open_after(query.after)
        latest_ms = self._environment.now_ms() - query.age_ms_min
        found: list[Transaction] = []
        while isinstance(left, IndexRange):
            page = await self._store.scan_index(left, self._options.page_records)
            for record in page.records:
                try:
                    transaction = header_of(record).transaction
                except Corrupt as error:
                    # A damaged header must not hide later transactions, in particular from a caller that aborts overdue
                    # ones.
                    _LOG.error("an open transaction cannot be listed: %s", error)
                    continue
                if transaction.state is State.OPEN and transaction.created_ms <= latest_ms:
                    found.append(transaction)
                if len(found) >= query.limit.items:
                    return tuple(found)
            left = page.resume
        return tuple(found)

    async def outstanding(self, after: TxnID | None, limit: Limit) -> tuple[Outstanding, ...]:
        """Return ended or unknown transactions that still have operations, ordered by id."""
        self._require_open()
        return await find_outstanding(self._store, after, limit, self._options.page_records)

    async def watch_ended(self, txn_ids: frozenset[TxnID]) -> dict[TxnID, State]:
        """Wait until one of the transactions has ended; nothing is read while no header changes."""
        watches: list[IWatch] = []
        try:
            for txn_id in sorted(txn_ids):
                watches.append(await self._store.watch(header_key(txn_id)))
            while txn_ids:
                self._require_open()
                ended: dict[TxnID, State] = {}
                for txn_id in sorted(txn_ids):
                    header = await read_header(self._store, txn_id)
                    state = State.COMMITTED if header is None else header.transaction.state
                    if state is not State.OPEN:
                        ended[txn_id] = state
                if ended:
                    return ended
                await first_of([*(watch.changed() for watch in watches), self._closed.wait()])
            return {}
        finally:
            await close_all(watches)

    async def expire(self, now_ms: int) -> SweepResult:
        """Abort transactions that are past their deadline."""
        self._require_open()
        return await self._sweeps.expire(now_ms)

    async def collect(self, now_ms: int) -> SweepResult:
        """Delete transactions that are finished, and finish those that are not."""
        self._require_open()
        return await self._sweeps.collect(now_ms)

    # -- applications ---------------------------------------------------------------------------------

    async def forget_segment(self, segment: str, upto_ledger_id: int | None) -> None:
        """Delete the abort records of a deleted segment, up to one ledger."""
        self._require_open()
        await self._sweeps.forget_segment(segment, upto_ledger_id)

    async def application(self, name: str) -> Application | None:
        """Return the application's state, or None if it is unknown."""
        self._require_open()
        return await self._applications.application(name)

    async def claim(self, name: str, run: str) -> Application:
        """Make ``run`` the current run, and fence the run before it."""
        self._require_open()
        return await self._applications.claim(name, run)

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        """Return the open transaction of this batch; begin it if none is open."""
        self._require_open()
        return await self._applications.begin_batch(batch, timeout_ms)

    async def finish_batch(self, batch: BatchID, txn_id: TxnID, ranges: tuple[SourceRange, ...]) -> None:
        """Record in the transaction the ranges that the batch consumed."""
        self._require_open()
        await self._applications.finish_batch(batch, txn_id, ranges)

    async def close(self) -> None:
        """Close the coordinator; callers that wait in ``watch_ended`` get Closed."""
        self._closed.set()
        await self._settling_group.close()

    async def _settle_own(self, ended: Transaction) -> int:
        written = self.operations.own.take(ended.txn_id)
        if written is None or ended.branches is None:
            return 0
        with self.operations.taking_effect(ended.txn_id):
            is_settled = await self._settling_group.settle(OwnOutcome(ended.txn_id, ended.branches, written))
        return len(written.operations) if is_settled else 0

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Closed("the coordinator was closed")

    async def _open_after(self, after: TxnID | None) -> IndexRange:
        """Return the index range of open transactions after the given one, which may have ended since."""
        whole = index_keys.prefix_range(TXN_BY_DEADLINE)
        if after is None:
            return whole
        header = await read_header(self._store, after)
        if header is None:
            raise TransactionNotFound(after)
        key = index_keys.encode(header.transaction.deadline_ms, str(after))
        return IndexRange(TXN_BY_DEADLINE, key + b"\x00", whole.stop)
