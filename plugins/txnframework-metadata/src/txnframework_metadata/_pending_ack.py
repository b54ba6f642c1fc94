"""The pending-ack store ``metadata``: acknowledgments of one subscription that wait for their transactions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
from zope.interface import implementer

from txnframework.errors import (
    Closed,
    Conflict,
    NotFound,
    OutcomeUnknown,
    TransactionConflict,
    TxnFrameworkError,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import IAtomicBatchStore, IPendingAckStore
from txnframework.model.acks import Ack, AckRequest, PendingAck, PendingAcks
from txnframework.model.ids import Branch, TxnID
from txnframework.model.metadata import Put
from txnframework.model.records import AckOperation, encode
from txnframework.model.transactions import State, Transaction
from txnframework.plugin import SubscriptionContext, options_as
from txnframework_metadata._ack_records import AckRecords
from txnframework_metadata._confirmed import ConfirmedAcks
from txnframework_metadata._operations import (
    forget,
    put_operations,
    read_header,
    require_family,
    require_open,
    scan_operations,
    withdraw,
)
from txnframework_metadata._options import PendingAckOptions
from txnframework_metadata._overlap import Surroundings, Verdict, judge
from txnframework_metadata._views import (
    StoredOperation,
    ack_document,
    operation_indexes,
    operation_of,
    processed_document,
    processed_of,
)


@implementer(IPendingAckStore)
class MetadataPendingAcks:
    """
    Acknowledgments are operation records; conflicts are found by *put, then look*.

    Of two processes that acknowledge one message at the same time each sees the other's record, because both put before
    they look. Within one process one request goes after the other, so that exactly one of two wins.
    """

    def __init__(self, context: SubscriptionContext) -> None:
        self.segment: str = context.segment
        self.subscription: str = context.subscription
        self._store = context.store
        self._cursor = context.cursor
        self._options = options_as(context.options, PendingAckOptions)
        self._confirmed = ConfirmedAcks(
            self._options.confirmed_records_max,
            admitted_is_confirmed=not IAtomicBatchStore.providedBy(context.store),
        )
        self._standing = AckRecords(context.store, self.segment, self.subscription, self._options.page_records)
        self._adding = asyncio.Lock()
        self._closed = False

    async def recover(self) -> PendingAcks:
        """Return what open transactions hold, and settle what has ended; the caller reads the cursor after this."""
        self._require_open()
        ended: dict[TxnID, State] = {}
        for _ in range(self._options.attempts_max):
            opened: dict[TxnID, tuple[PendingAck, ...]] = {}
            unfinished = False
            for txn_id, operations in (await self._standing.by_txn()).items():
                header = await read_header(self._store, txn_id)
                if header is None:
                    await forget(self._store, operations)  # never admitted, or settled since: no effect either way
                elif header.transaction.state is State.OPEN:
                    opened[txn_id] = _pending(operations)
                else:
                    ended[txn_id] = header.transaction.state
                    unfinished = True
                    await self._settle_operations(header.transaction, operations)
            if not unfinished:
                return PendingAcks(opened, ended)
            # Looked at again: on a store without atomic batches a record may have been admitted while it was settled.
        raise Unavailable(f"transactions keep ending on subscription {self.subscription} of {self.segment}")

    async def add(self, request: AckRequest) -> None:
        """Record that the acks take effect if the branch's commit counts."""
        self._require_open()
        require_family(request.branch.txn_id, self.segment)
        if not request.acks:
            return
        async with self._adding:
            header = await require_open(self._store, request.branch.txn_id, request.principal)
            documents = self._documents(request)
            stored = await put_operations(self._store, header, documents, self._options.page_records)
            reason = f"an acknowledgment in {request.branch.txn_id} failed and may still be recorded"
            verdict: Verdict | None = None
            try:
                verdict, doubles = await self._look(request, stored)
                if verdict.conflict:
                    raise TransactionConflict(request.branch.txn_id, verdict.conflict, verdict.other)
                if not verdict.repeated:
                    await self._admit(stored)
            except (Conflict, NotFound, Unavailable, Closed) as error:
                # It stands and nobody is going to be told that it does: an unknown outcome unless it can be undone.
                try:
                    await withdraw(self._store, stored)
                except TxnFrameworkError as undone:
                    raise OutcomeUnknown(f"{reason}: {error}") from undone
                if verdict is not None and verdict.unsure:
                    # An earlier record of it stands, and it may be one that was confirmed: it is not to be touched.
                    raise OutcomeUnknown(f"{reason}: {error}") from error
                raise
            if verdict.repeated:
                doubles = stored
            else:
                self._confirmed.note(stored)
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await withdraw(self._store, doubles)

    async def settle(self, ended: Transaction) -> None:
        """Make an outcome take effect here: the cursor first, then the operations are forgotten."""
        self._require_open()
        if ended.state not in (State.COMMITTED, State.ABORTED):
            raise ValueError(f"transaction {ended.txn_id} is {ended.state.value}, only an ended one can be settled")
        for _ in range(self._options.attempts_max):
            mine = [
                operation
                for operation in await scan_operations(self._store, ended.txn_id, self._options.page_records)
                if self._standing.has(operation)
            ]
            if not mine:
                return
            await self._settle_operations(ended, mine)
        raise Unavailable(f"acknowledgments of {ended.txn_id} keep changing on {self.subscription} of {self.segment}")

    async def close(self) -> None:
        """Stop; may be repeated."""
        self._closed = True

    # -- adding ---------------------------------------------------------------------------------------

    def _documents(self, request: AckRequest) -> list[AckOperation]:
        """Return the records of a request: cumulative and individual acks apart, a bounded number in each."""
        # Without atomic batches the record is visible before the header was read again; until then it must not count.
        admitted = IAtomicBatchStore.providedBy(self._store)
        documents = []
        for cumulative in (False, True):
            acks = [ack for ack in request.acks if ack.cumulative is cumulative]
            for start in range(0, len(acks), self._options.acks_per_record_max):
                some = acks[start : start + self._options.acks_per_record_max]
                documents.append(
                    AckOperation(
                        branch=request.branch.number,
                        segment=self.segment,
                        subscription=self.subscription,
                        incarnation=request.incarnation,
                        acks=[ack_document(ack) for ack in some],
                        cumulative=cumulative,
                        admitted=admitted,
                        processed=processed_document(request.processed),
                    )
                )
        return documents

    async def _look(
        self, request: AckRequest, stored: Sequence[StoredOperation]
    ) -> tuple[Verdict, list[StoredOperation]]:
        """
        Judge a request whose records stand: the others' operations, their headers, the cursor last.

        An operation whose header is gone by then was settled, and the cursor that is read after that shows it. Returned
        besides: earlier records of the branch that say the same, and are not needed once this one is confirmed.
        """
        just_put = {operation.record.key.path for operation in stored}
        doubles: list[StoredOperation] = []
        own: list[Ack] = []
        unsure: list[Ack] = []
        pending: list[tuple[TxnID, Ack]] = []
        committed: list[Ack] = []
        for txn_id, operations in (await self._standing.by_txn()).items():
            same = txn_id == request.branch.txn_id
            header = None if same else await read_header(self._store, txn_id)
            for operation in operations:
                document = operation.document
                if not isinstance(document, AckOperation) or document.incarnation != request.incarnation:
                    continue
                if same:
                    if document.branch != request.branch.number or operation.record.key.path in just_put:
                        continue
                    if self._confirmed.holds(operation):
                        own += operation.acks
                    elif document.admitted:
                        unsure += operation.acks
                        doubles += [operation] if _is_replaced(operation, stored) else []
                elif header is not None and header.transaction.state is State.OPEN:
                    pending += ((txn_id, ack) for ack in operation.acks)
                elif header is not None and header.transaction.counts(document.branch):
                    committed += operation.acks
        cursor = await self._cursor.load()
        if cursor.incarnation != request.incarnation:
            return Verdict("the subscription was moved or made again since the messages were received"), []
        around = Surroundings(tuple(own), tuple(unsure), tuple(pending), tuple(committed), cursor)
        return judge(request.acks, around), doubles

    async def _admit(self, stored: Sequence[StoredOperation]) -> None:
        """Let records count that were put before the header was looked at again."""
        for operation in stored:
            document = operation.document
            if isinstance(document, AckOperation) and not document.admitted:
                await self._admit_one(operation, document)

    async def _admit_one(self, operation: StoredOperation, document: AckOperation) -> None:
        """Admit one record by compare-and-set, so that it cannot be deleted as not admitted at the same time."""
        key = operation.record.key
        admitted = msgspec.structs.replace(document, admitted=True)
        unknown = False
        for _ in range(self._options.attempts_max):
            record = await self._store.get(key)
            if record is None:
                if unknown:
                    raise OutcomeUnknown(f"an acknowledgment in {operation.txn_id} may have taken effect")
                raise TransactionConflict(operation.txn_id, "it ended while the acknowledgment was recorded")
            if operation_of(record).document == admitted:
                return
            try:
                await self._store.put(Put(key, encode(admitted), record.version, operation_indexes(admitted)))
            except VersionMismatch:
                continue
            except OutcomeUnknown:
                unknown = True
                continue
            return
        raise OutcomeUnknown(f"an acknowledgment in {operation.txn_id} may have taken effect")

    # -- settling -------------------------------------------------------------------------------------

    async def _settle_operations(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        """
        Apply what counts to the cursor, then forget the records as they were read.

        The order closes a crash window: an operation that is deleted before the cursor moved is an acknowledgment lost.
        """
        plain: dict[int, list[Ack]] = {}
        for operation in operations:
            document = operation.document
            if not isinstance(document, AckOperation) or not document.admitted or not ended.counts(document.branch):
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


def _is_replaced(earlier: StoredOperation, stored: Sequence[StoredOperation]) -> bool:
    """
    Whether a record that was just put says the same under a higher key.

    By key, so that of two processes that see each other's records only one removes the other's.
    """
    path = earlier.record.key.path
    return any(put.document == earlier.document and put.record.key.path > path for put in stored)


def _pending(operations: Sequence[StoredOperation]) -> tuple[PendingAck, ...]:
    """Return what an open transaction holds, admitted or not: what is about to be admitted is held as well."""
    return tuple(
        PendingAck(Branch(operation.txn_id, document.branch), ack, State.OPEN, document.incarnation)
        for operation in operations
        if isinstance(document := operation.document, AckOperation)
        for ack in operation.acks
    )
