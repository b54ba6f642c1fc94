"""The pending-ack store ``log``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from zope.interface import implementer

from txnframework.errors import (
    Closed,
    LedgerNotFound,
    LedgerSealed,
    NotTransactionOwner,
    OutcomeUnknown,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionNotFound,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.interfaces import ISealablePendingAcks
from txnframework.model import Ack, AckRequest, Branch, Participant, PendingAck, PendingAcks, State, Transaction, TxnID
from txnframework.model.ack_overlap import AckContext, AckIndex, Verdict, judge
from txnframework.model.cursor import Cursor
from txnframework.model.ids import LOG_FAMILY
from txnframework.model.index_keys import prefix_range
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION
from txnframework.model.joint import JointAck
from txnframework.model.metadata import Record
from txnframework.plugin import SubscriptionContext, foreign_data, options_as
from txnframework_legacy.admission import FamilyRegistration
from txnframework_legacy.buffer.sealed_topic import has_migrated
from txnframework_legacy.ledger_names import PENDING_ACKS, ledger_name, parse_ledger_name
from txnframework_legacy.log.switched_writer import LogWriterFactory
from txnframework_legacy.log.switches import LogKind, Scope, SwitchWatchers
from txnframework_legacy.options import PendingAckOptions
from txnframework_legacy.pending_acks.holds import Hold
from txnframework_legacy.pending_acks.log import PendingAckLog
from txnframework_legacy.pending_acks.records import (
    Acked,
    Withdrawn,
    document_of,
    processed_document_of,
)
from txnframework_legacy.pending_acks.settlement import AckSettlement

TOKEN_BITS = 63
LOG_PREFIX = f"{PENDING_ACKS}:"


def log_name(segment: str, life: int, subscription: str) -> str:
    """Return the name of a subscription's log."""
    return ledger_name(PENDING_ACKS, segment, life, subscription)


def scope_of(name: str) -> Scope:
    """Return the segment and the subscription in the name of a log."""
    segment, _, subscription = parse_ledger_name(name)
    return Scope(segment, subscription)


@implementer(ISealablePendingAcks)
class LogPendingAcks:
    """
    Appends acknowledgments to the subscription's log, and verifies them again before it confirms that they are held.

    An ended transaction is settled by its coordinator's request, by opening the subscription, and by a conflicting
    acknowledgment.
    """

    def __init__(self, context: SubscriptionContext, switches: SwitchWatchers | None = None) -> None:
        switches = SwitchWatchers(LogKind.PENDING_ACKS) if switches is None else switches
        self.segment: str = context.segment
        self.subscription: str = context.subscription
        self._name = log_name(context.segment, context.life, context.subscription)
        self._participant = Participant(context.segment, context.subscription)
        self._topic, self._life = context.topic, context.life
        self._cursor = context.cursor
        self._ledgers = context.ledgers
        self._store = context.store
        self._coordinator = context.coordinator
        self._environment = context.environment
        self._options = options_as(context.options, PendingAckOptions)
        batching = self._options.batching
        watcher = switches.of(context.store, context.environment)
        self._writers = LogWriterFactory(watcher, context.environment, batching, context.metrics)
        self._settlement = AckSettlement(self._participant, context.cursor, batching.records_max)
        self._opening = asyncio.Lock()
        self._log: PendingAckLog | None = None
        self._registration = FamilyRegistration(context.store, context.topic, self._options.attempts_max)
        self._is_verified = False
        self._is_closed = False

    async def recover(self) -> PendingAcks:
        """
        Return the holds of open transactions, and settle ended ones. Reads the log, then the transactions, then the
        cursor.

        :raises ConfigurationError: transactions of another family hold acknowledgments, or their ended ones are not
            settled.
        :raises Unavailable: the same, because the topic has just migrated to that family.
        """
        await self._require_no_foreign_acks()
        log = await self._opened(make=False)
        if log is None:
            return PendingAcks({}, {})  # no transaction has acknowledged here
        await log.catch_up()
        found: dict[TxnID, tuple[PendingAck, ...]] = {}
        ended: dict[TxnID, State] = {}
        for txn_id in log.held.transactions():
            transaction = await self._find_transaction(txn_id)
            if transaction is None or transaction.state is not State.OPEN:
                await self._settlement.settle(log, txn_id, transaction)
                if transaction is not None:
                    ended[txn_id] = transaction.state
            else:
                found[txn_id] = tuple(_pending(log.held.of(txn_id)))
        await log.shrink(self._records_max(log))
        return PendingAcks(found, ended)

    async def add(self, request: AckRequest) -> None:
        """
        Hold the acknowledgments for the request's branch.

        :raises TransactionDomainMismatch: the transaction belongs to another family.
        :raises NotTransactionOwner: the transaction belongs to another principal.
        :raises TransactionConflict: another transaction holds some of the messages, the cursor has moved past them, or
            the transaction has ended.
        :raises OutcomeUnknown: the acknowledgments may be held.
        """
        txn_id = request.branch.txn_id
        self._require_open()
        if txn_id.family != LOG_FAMILY:
            reason = "its acknowledgments are kept in a log, for transactions of the log family"
            raise TransactionDomainMismatch(txn_id, txn_id.family, self.segment, reason)
        transaction = await self._coordinator.describe(txn_id)
        if transaction.principal and transaction.principal != request.principal:
            raise NotTransactionOwner(txn_id, request.principal)
        if transaction.state is not State.OPEN or self._participant not in transaction.participants:
            await self._coordinator.enlist(txn_id, frozenset({self._participant}))
        log = await self._opened(make=True)
        assert log is not None
        verdict = await self._judge(log, request)
        if verdict.conflict:
            raise TransactionConflict(txn_id, verdict.conflict, verdict.other)
        if not verdict.repeated:
            try:
                await self._hold(log, request)
            except LedgerSealed as error:
                raise TransactionConflict(txn_id, f"{self.segment} migrates to another family") from error
        elif too_late := await self._too_late(request):
            # The record is stored, but the call that stored it may not have verified it.
            raise TransactionConflict(txn_id, too_late)

    async def settle(self, ended: Transaction) -> None:
        """Apply the outcome to the cursor, *then* release the holds."""
        log = await self._opened(make=False)
        if log is None:
            return
        if await self._settlement.settle(log, ended.txn_id, ended) and log.records >= self._records_max(log):
            await log.shrink(self._records_max(log))

    async def plan_joint(self, requests: tuple[AckRequest, ...]) -> JointAck | None:  # noqa: ARG002
        """Return None: an acknowledgment is an entry of the log, and never part of a step."""
        return None

    async def finish_joint(self, planned: JointAck, written: Record | None) -> None:
        """Do nothing: nothing is planned."""

    async def seal(self) -> PendingAcks:
        """
        Seal the log, which is created for it if it does not exist; return what open transactions hold.

        Without a log, a process that does not know of the migration could create one later.
        """
        log = await self._opened(make=True)
        assert log is not None
        await log.seal()
        return await self.recover()

    async def close(self) -> None:
        """Refuse further calls and close the log. Idempotent."""
        self._is_closed = True
        async with self._opening:
            if self._log is not None:
                await self._log.close()

    async def _require_no_foreign_acks(self) -> None:
        """Refuse a subscription with records of the metadata family: what they hold would be delivered here."""
        if self._is_verified:
            return
        held = prefix_range(ACKS_BY_SEGMENT_SUBSCRIPTION, self.segment, self.subscription)
        found = (await self._store.scan_index(held, 1)).records
        if found:
            if await has_migrated(self._store, self._topic, self._life):
                raise Unavailable(f"{self._topic} has just migrated to the metadata family")
            what = f"acknowledgments of the metadata family's transactions in subscription {self.subscription}"
            raise foreign_data(self.segment, what, "plugins of that family (until these have taken effect)")
        self._is_verified = True

    # -- holding --------------------------------------------------------------------------------------

    async def _hold(self, log: PendingAckLog, request: AckRequest) -> None:
        """Append the request and verify that it holds; after a failure from the append on, it may be recorded."""
        txn_id, token = request.branch.txn_id, self._environment.random_bits(TOKEN_BITS)
        await self._registration.register()
        await log.append(_record_of(request, token))
        if not log.held.has(txn_id, token):
            await self._require_refused(log, request)
        try:
            conflict = await self._too_late(request)
            if conflict:
                await log.append(Withdrawn(txn=str(txn_id), token=token))
        except OutcomeUnknown:
            raise
        except TxnFrameworkError as error:
            reason = f"an acknowledgment of {txn_id} in {self.subscription} is stored, but could not be verified"
            raise OutcomeUnknown(reason) from error
        if conflict:
            raise TransactionConflict(txn_id, conflict)

    async def _require_refused(self, log: PendingAckLog, request: AckRequest) -> None:
        """Raise ``TransactionConflict``, unless the appended record did hold and was settled since."""
        txn_id = request.branch.txn_id
        other = _holder(log.held.near(request.acks, txn_id, request.incarnation), request.acks)
        transaction = None if other is not None else await self._find_transaction(txn_id)
        if transaction is not None and transaction.counts(request.branch.number):
            raise OutcomeUnknown(f"{txn_id} was committed while it acknowledged in {self.subscription}")
        raise TransactionConflict(txn_id, "another transaction acknowledged it first, or it has ended", other)

    async def _too_late(self, request: AckRequest) -> str:
        """
        Return why the appended record must not hold, by the transaction's state and the cursor; empty if it may.

        This is checked after the append: a process that ends the transaction from now on sees the record. The cursor is
        read first. If the transaction is still open afterwards, an acknowledgment in that cursor is not its own.
        """
        branch = request.branch
        cursor = await self._cursor.load()
        transaction = await self._find_transaction(branch.txn_id)
        if transaction is not None and transaction.counts(branch.number):
            raise OutcomeUnknown(f"{branch.txn_id} was committed while it acknowledged in {self.subscription}")
        if transaction is None or transaction.state is not State.OPEN:
            return "it has ended"
        return (
            self._outdated(request, cursor)
            or judge(request.acks, _surroundings(request, cursor), request.received).conflict
        )

    def _outdated(self, request: AckRequest, cursor: Cursor) -> str:
        if cursor.incarnation != request.incarnation:
            return "the subscription was moved since these messages were received"
        # A subscription that was not listed when the topic migrated has a log that is not sealed.
        if not cursor.admits(LOG_FAMILY):
            return "its topic has migrated"
        return ""

    async def _judge(self, log: PendingAckLog, request: AckRequest) -> Verdict:
        """Return the verdict on a request before it is appended."""
        txn_id = request.branch.txn_id
        await log.catch_up()
        others = list(log.held.near(request.acks, txn_id, request.incarnation))
        holder = _holder(others, request.acks)
        if holder is not None and await self._settled_if_ended(log, holder):
            others = list(log.held.near(request.acks, txn_id, request.incarnation))
        own = [hold for hold in log.held.of(txn_id) if hold.branch == request.branch]
        cursor = await self._cursor.load()
        outdated = self._outdated(request, cursor)
        if outdated:
            return Verdict(outdated)
        pending = tuple((hold.branch.txn_id, hold.index) for hold in others)
        mine = AckIndex(ack for hold in own if hold.incarnation == request.incarnation for ack in hold.acks)
        return judge(request.acks, _surroundings(request, cursor, (mine,), pending), request.received)

    # -- settling -------------------------------------------------------------------------------------

    async def _settled_if_ended(self, log: PendingAckLog, txn_id: TxnID) -> bool:
        """Settle a conflicting transaction unless it is open; return whether it was settled."""
        transaction = await self._find_transaction(txn_id)
        if transaction is not None and transaction.state is State.OPEN:
            return False
        await self._settlement.settle(log, txn_id, transaction)
        return True

    async def _find_transaction(self, txn_id: TxnID) -> Transaction | None:
        """Return the current state of a transaction; None if it is unknown."""
        try:
            return await self._coordinator.describe(txn_id)
        except TransactionNotFound:
            return None

    def _records_max(self, log: PendingAckLog) -> int:
        """
        Return the bound for records in the log.

        Another bound applies while no transaction holds acknowledgments. So opening the log reads few records besides
        the holds.
        """
        return self._options.ledger_entries_max if log.held else self._options.idle_entries_max

    # -- the log --------------------------------------------------------------------------------------

    async def _opened(self, *, make: bool) -> PendingAckLog | None:
        """Return the log; None if it does not exist and ``make`` is false."""
        self._require_open()
        async with self._opening:
            if self._log is None:
                try:
                    ledger = await (self._ledgers.create(self._name) if make else self._ledgers.open(self._name))
                except LedgerNotFound:
                    return None
                writer = await self._writers.open(ledger, Scope(self.segment, self.subscription))
                self._log = PendingAckLog(ledger, writer)
            return self._log

    def _require_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the pending acknowledgments of {self.subscription} on {self.segment} were closed")


def _surroundings(
    request: AckRequest,
    cursor: Cursor,
    own: tuple[AckIndex, ...] = (),
    pending: tuple[tuple[TxnID, AckIndex], ...] = (),
) -> AckContext:
    return AckContext(own, (), pending, (), cursor, request.processed is not None)


def _holder(others: Iterable[Hold], acks: Sequence[Ack]) -> TxnID | None:
    """Return the transaction that holds some of these acknowledgments."""
    return next((hold.branch.txn_id for hold in others if hold.overlaps(acks)), None)


def _record_of(request: AckRequest, token: int) -> Acked:
    return Acked(
        txn=str(request.branch.txn_id),
        branch=request.branch.number,
        token=token,
        incarnation=request.incarnation,
        acks=[document_of(ack) for ack in request.acks],
        processed=processed_document_of(request.processed),
    )


def _pending(holds: Iterable[Hold]) -> Iterable[PendingAck]:
    for hold in holds:
        branch: Branch = hold.branch
        yield from (PendingAck(branch, ack, State.OPEN, hold.incarnation) for ack in hold.acks)
