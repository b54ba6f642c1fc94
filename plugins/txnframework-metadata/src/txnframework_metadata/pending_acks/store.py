"""The pending-ack store ``metadata``: acknowledgments of one subscription whose transactions have not ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence

from zope.interface import implementer

from txnframework.errors import (
    Closed,
    Conflict,
    NotFound,
    OutcomeUnknown,
    TransactionConflict,
    Unavailable,
)
from txnframework.interfaces import IPendingAckStore
from txnframework.model.ack_overlap import Verdict
from txnframework.model.acks import Ack, AckRequest, PendingAck, PendingAcks
from txnframework.model.ids import Branch, TxnID
from txnframework.model.joint import JointAck
from txnframework.model.metadata import Record
from txnframework.model.records import AckOperation
from txnframework.model.transactions import State, Transaction
from txnframework.plugin import SubscriptionContext, options_as
from txnframework.runtime.call_groups import Answers, CallGroups
from txnframework_metadata.options import PendingAckOptions
from txnframework_metadata.pending_acks.conflict_check import CheckSources, check_conflicts, replaced
from txnframework_metadata.pending_acks.groups import ack_group_rules
from txnframework_metadata.pending_acks.joint_acks import JointAcks
from txnframework_metadata.pending_acks.records import AckRecords, ConfirmedAcks
from txnframework_metadata.pending_acks.writer import Change, Draft, drafts, put_drafts, take_back
from txnframework_metadata.records.headers import Header, read_header, require_owner
from txnframework_metadata.records.operations import forget, require_family, scan_operations
from txnframework_metadata.records.own_operations import AckSettler
from txnframework_metadata.records.shared_operations import operations_shared_by
from txnframework_metadata.records.views import StoredOperation, processed_document, processed_of


@implementer(IPendingAckStore)
class MetadataPendingAcks:
    """
    Stores acknowledgments as operation records, and finds conflicts by *put, then look*.

    If two processes acknowledge one message at the same time, each sees the other's record, because both write before
    they look. Within one process, groups of requests of one branch run one after the other, so that exactly one of two
    transactions wins. Later acknowledgments of a branch go into its existing record (see ``writer``).
    """

    def __init__(self, context: SubscriptionContext) -> None:
        self.segment: str = context.segment
        self.subscription: str = context.subscription
        self._store = context.store
        self._cursor = context.cursor
        self._options = options_as(context.options, PendingAckOptions)
        self._confirmed = ConfirmedAcks(self._options.confirmed_records_max)
        self._records = AckRecords(context.store, self.segment, self.subscription, self._options.page_records)
        rules = ack_group_rules(self._options.acks_per_record_max)
        self._groups: CallGroups[AckRequest] = CallGroups(self._record, rules)
        self._operations = operations_shared_by(context.coordinator, context.store, self._options.page_records)
        self._place = AckSettler(context.cursor, self._confirmed.forget)
        self._joint = JointAcks(context.cursor)
        self._header: Header | None = None
        self._closed = False

    async def recover(self) -> PendingAcks:
        """
        Return the acknowledgments of open transactions, and settle ended ones.

        The caller reads the cursor after this.
        """
        self._require_open()
        opened: dict[TxnID, tuple[PendingAck, ...]] = {}
        ended: dict[TxnID, State] = {}
        unfinished: list[Transaction] = []
        for txn_id, operations in (await self._records.by_txn()).items():
            header = await read_header(self._store, txn_id)
            if header is None:
                await forget(self._store, operations)  # settled since, so nothing is left to do
            elif header.transaction.state is State.OPEN:
                opened[txn_id] = _pending(operations)
            else:
                ended[txn_id] = header.transaction.state
                unfinished.append(header.transaction)
        await self._settle_all(unfinished)
        return PendingAcks(opened, ended)

    async def add(self, request: AckRequest) -> None:
        """Record acknowledgments that take effect if the branch's commit counts."""
        self._require_open()
        require_family(request.branch.txn_id, self.segment)
        if request.acks:
            await self._groups.add(request)

    async def settle(self, ended: Transaction) -> None:
        """Make an outcome take effect here: move the cursor, then remove the operations."""
        self._require_open()
        if ended.state not in (State.COMMITTED, State.ABORTED):
            raise ValueError(f"transaction {ended.txn_id} is {ended.state.value}, only an ended one can be settled")
        await self._settle(ended, with_writes=False)

    async def plan_joint(self, requests: tuple[AckRequest, ...]) -> JointAck | None:
        """Return acknowledgments as a part of the only step of their transactions, or None."""
        self._require_open()
        for request in requests:
            require_family(request.branch.txn_id, self.segment)
        return await self._joint.plan(requests)

    async def finish_joint(self, planned: JointAck, written: Record | None) -> None:
        """End a plan."""
        await self._joint.finish(planned, written)

    async def close(self) -> None:
        """
        Close the store.

        Running requests raise OutcomeUnknown. May be repeated.
        """
        self._closed = True
        await self._groups.close()

    # -- adding ---------------------------------------------------------------------------------------

    async def _record(self, requests: list[AckRequest]) -> Answers:
        """Record a group of one branch; return the result of each request."""
        first = requests[0]
        header = await self._open_header(first)
        changes: list[Change] = []
        verdicts: list[Verdict] = []
        try:
            await put_drafts(self._store, header, self._drafts(requests), self._options.page_records, changes)
            verdicts, earlier = await self._look(requests, [change.now for change in changes])
        except (Conflict, NotFound, Unavailable, Closed) as error:
            self._header = None
            # The record is stored, but its caller gets an error: an unknown outcome, unless the record can be
            # withdrawn.
            for operation in await self._take_back(header, changes, ()):
                self._note(operation)
            if any(verdict.unsure for verdict in verdicts):
                # An earlier record holds a part of it and may have been confirmed, so it must not be changed.
                raise OutcomeUnknown(_failed(first, str(error))) from error
            raise
        return await self._answer(requests, header, changes, verdicts, earlier)

    async def _open_header(self, request: AckRequest) -> Header:
        """
        Return the header of a request's transaction.

        Consecutive requests of one transaction share one read.
        """
        known = self._header
        if known is not None and known.transaction.txn_id == request.branch.txn_id:
            # The transaction may have ended since; its version has then changed, and every write is refused.
            require_owner(known, request.principal)
            return known
        header = await self._operations.begun.header(self._store, request.branch.txn_id, request.principal)
        self._header = header
        return header

    async def _answer(
        self,
        requests: Sequence[AckRequest],
        header: Header,
        changes: Sequence[Change],
        verdicts: Sequence[Verdict],
        earlier: Sequence[StoredOperation],
    ) -> Answers:
        """Withdraw the parts that conflict or are stored in another record, and return the result of each request."""
        kept = {number for number, verdict in enumerate(verdicts) if not verdict.conflict and not verdict.repeated}
        unknown: OutcomeUnknown | None = None
        standing: list[StoredOperation] = []
        try:
            standing = await self._take_back(header, changes, kept)
            for operation in standing:
                self._note(operation)
        except OutcomeUnknown as error:
            unknown = error
            for operation in filter(None, (change.confirmed(kept) for change in changes)):
                self._confirmed.note_part(operation)
        if kept:
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await forget(self._store, replaced(earlier, standing))
        answers: list[Exception | None] = []
        for request, verdict in zip(requests, verdicts, strict=True):
            if not verdict.conflict:
                answers.append(None)
            elif verdict.unsure or unknown is not None:
                answers.append(OutcomeUnknown(_failed(request, str(unknown or verdict.conflict))))
            else:
                answers.append(TransactionConflict(request.branch.txn_id, verdict.conflict, verdict.other))
        return answers

    def _note(self, operation: StoredOperation) -> None:
        """Remember a record of which everything is confirmed."""
        document = operation.document
        self._confirmed.note(operation, may_grow=isinstance(document, AckOperation) and document.processed is None)
        self._operations.own.note(operation, self._place)

    def _drafts(self, requests: Sequence[AckRequest]) -> list[Draft]:
        """Return the records of a group: cumulative and individual acks apart, a bounded number in each record."""
        first = requests[0]
        found = []
        for cumulative in (False, True):
            parts = [
                (number, ack)
                for number, request in enumerate(requests)
                for ack in request.acks
                if ack.cumulative is cumulative
            ]
            if not parts:
                continue
            blank = AckOperation(
                branch=first.branch.number,
                segment=self.segment,
                subscription=self.subscription,
                incarnation=first.incarnation,
                acks=[],
                cumulative=cumulative,
                processed=processed_document(first.processed),
            )
            growing = (
                self._confirmed.take_growing(first.branch, first.incarnation, cumulative)
                if first.processed is None
                else None
            )
            found += drafts(blank, parts, growing, self._options.acks_per_record_max)
        return found

    async def _look(
        self, requests: Sequence[AckRequest], stored: Sequence[StoredOperation]
    ) -> tuple[list[Verdict], list[StoredOperation]]:
        """Judge requests of one branch whose records are stored; see ``look``."""
        return await check_conflicts(
            CheckSources(self._store, self._records, self._confirmed, self._cursor), requests, stored
        )

    async def _take_back(
        self, header: Header, changes: Sequence[Change], kept: Collection[int]
    ) -> list[StoredOperation]:
        """Withdraw the records of a group, except for the requests in ``kept``."""
        return await take_back(self._store, header, changes, kept)

    # -- settling -------------------------------------------------------------------------------------

    async def _settle_all(self, ended: Sequence[Transaction]) -> None:
        """Settle transactions: those that this process wrote in one step, and the others by reading."""
        # The coordinator may be settling some of them just now.
        await asyncio.gather(*(self._operations.until_taken_effect(one.txn_id) for one in ended))
        with contextlib.ExitStack() as marks:
            for one in ended:
                marks.enter_context(self._operations.taking_effect(one.txn_id))
            settled = await asyncio.gather(*map(self._operations.settle_own, ended))
            for one, is_settled in zip(ended, settled, strict=True):
                if not is_settled:
                    await self._settle(one, with_writes=True)

    async def _settle(self, ended: Transaction, *, with_writes: bool) -> None:
        """
        Settle a transaction here; the operations are read after its end, because earlier ones may be withdrawn since.

        ``with_writes``: also tell the open buffers of this process about a commit, and remove its write operations
        there in the same step, as the coordinator would do later in a step of its own.
        """
        operations = await scan_operations(self._store, ended.txn_id, self._options.page_records)
        mine = [operation for operation in operations if self._records.has(operation)]
        if mine:
            writes = self._operations.tell_committed(ended, operations)[0] if with_writes else []
            await self._settle_operations(ended, [*mine, *writes])

    async def _settle_operations(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        """
        Apply the acknowledgments that count to the cursor, then remove the records if unchanged since they were read.

        The order closes a crash window: if an operation were deleted before the cursor moved, its acknowledgment would
        be lost.
        """
        plain: dict[int, list[Ack]] = {}
        for operation in operations:
            document = operation.document
            if not isinstance(document, AckOperation) or not ended.counts(document.branch):
                continue
            if document.processed is None:
                plain.setdefault(document.incarnation, []).extend(operation.acks)
            else:
                processed = processed_of(document.processed)
                await self._cursor.apply(document.incarnation, operation.acks, processed)
        for incarnation, acks in sorted(plain.items()):
            await self._cursor.apply(incarnation, tuple(acks), None)
        await forget(self._store, operations)
        self._confirmed.forget(operations)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the pending acknowledgments of {self.subscription} on {self.segment} were closed")


def _failed(request: AckRequest, why: str) -> str:
    return f"an acknowledgment in {request.branch.txn_id} failed and may still be recorded: {why}"


def _pending(operations: Sequence[StoredOperation]) -> tuple[PendingAck, ...]:
    """Return the acknowledgments of an open transaction."""
    return tuple(
        PendingAck(Branch(operation.txn_id, document.branch), ack, State.OPEN, document.incarnation)
        for operation in operations
        if isinstance(document := operation.document, AckOperation)
        for ack in operation.acks
    )
