"""Intents: the branches that this process announced as writers, and the record that precedes their first entry."""

from __future__ import annotations

from collections import OrderedDict

from txnframework.errors import LedgerSealed, VersionMismatch
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model.ids import Branch, TxnID
from txnframework.model.ledger import Append, Appended
from txnframework.model.metadata import Check
from txnframework.model.positions import EARLIEST
from txnframework.model.records import WriteOperation, decode
from txnframework.model.steps import Intent, LedgerAppend, Step
from txnframework_metadata.options import BufferOptions
from txnframework_metadata.records.operations import are_together, operation_indexes, require_family, require_open
from txnframework_metadata.records.shared_operations import SharedOperations
from txnframework_metadata.records.views import StoredOperation


class Intents:
    """
    One write operation for each (branch, open ledger), written before the branch's first append to it, or with it.

    A branch is remembered here after its record was stored. What is remembered does not decide which entries may be
    read. So if a record could not be written, no reader is blocked. A forgotten branch costs one more record.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        store: IMetadataStore,
        operations: SharedOperations,
        options: BufferOptions,
    ) -> None:
        self._segment = segment
        self._ledger = ledger
        self._store = store
        self._operations = operations
        self._options = options
        self._noted = _Noted(options.intents_max)
        self.is_one_step = are_together(store, ledger)
        """Whether the intent and the first append of a branch are one step; then use ``append``, not ``admit``."""

    async def append(self, branch: Branch, principal: str, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """
        Append entries; the first ones of ``branch`` together with its intent, in one step.

        No process can read the entries before the intent. A crash leaves both or neither, so no intent without an entry
        holds readers back until the transaction ends. The intent's position is taken in the same step, so no entry can
        come between them.

        :raises LedgerClosed: the ledger that ``branch`` was admitted to takes no more entries.
        :raises OutcomeUnknown: both are stored, or neither; after the same call again, the intent may be stored twice.

        Otherwise raises as ``admit`` does.
        """
        require_family(branch.txn_id, self._segment)
        known = self._noted.get(branch)
        if known is not None:
            if self._options.check_every_append:
                await require_open(self._store, branch.txn_id, principal)
            return await self._ledger.append(entries, known)
        header = await self._operations.begun.header(self._store, branch.txn_id, principal)
        # The store sets ``ledger`` and ``after``.
        operation = WriteOperation(branch=branch.number, segment=self._segment, ledger=0, after=str(EARLIEST))
        intent = Intent(header.operations, operation_indexes(branch.txn_id, operation), operation)
        check, append = Check(header.key, header.version), LedgerAppend(self._ledger.reference, entries, intent)
        try:
            done = await self._store.apply(Step(checks=(check,), appends=(append,)))
        except VersionMismatch:
            await require_open(self._store, branch.txn_id)
            raise
        (record,), (appended,) = done.records, done.appended
        written = decode(WriteOperation, record)
        self._operations.own.note(StoredOperation(record, branch.txn_id, written))
        self._noted.note(branch, written.ledger)
        return appended

    async def admit(self, branch: Branch, principal: str) -> int:
        """
        Return the ledger that ``branch`` may append to; its intent is durable.

        :raises TransactionConflict: the transaction has ended.
        :raises TransactionNotFound: the transaction is unknown.
        :raises NotTransactionOwner: the transaction belongs to another principal.
        :raises LedgerSealed: the segment accepts no more entries.
        :raises OutcomeUnknown: the intent may be stored; it has no entry.
        """
        require_family(branch.txn_id, self._segment)
        known = self._noted.get(branch)
        if known is not None:
            if self._options.check_every_append:
                await require_open(self._store, branch.txn_id, principal)
            return known
        header = await self._operations.begun.header(self._store, branch.txn_id, principal)
        tail = await self._ledger.tail()
        if tail.sealed:
            raise LedgerSealed(self._segment)
        document = WriteOperation(
            branch=branch.number,
            segment=self._segment,
            ledger=tail.open_ledger_id,
            after=str(tail.last_confirmed),
        )
        await self._operations.put_intent(header, document)
        self._noted.note(branch, tail.open_ledger_id)
        return tail.open_ledger_id

    def closed(self, branch: Branch) -> None:
        """Forget the ledger that ``branch`` was admitted to, because it accepts no more entries."""
        self._noted.forget(branch)

    def forget(self, txn_id: TxnID) -> None:
        """Forget an ended transaction; a further send reads its header again."""
        self._noted.forget_all(txn_id)


class _Noted:
    """A bounded map from branch to the ledger it was admitted to, grouped by transaction."""

    def __init__(self, branches_max: int) -> None:
        self._branches_max = branches_max
        self._branches = 0
        self._by_txn: OrderedDict[TxnID, dict[int, int]] = OrderedDict()

    def get(self, branch: Branch) -> int | None:
        return self._by_txn.get(branch.txn_id, {}).get(branch.number)

    def note(self, branch: Branch, ledger_id: int) -> None:
        """Remember a branch, and forget one of the oldest transaction beyond the bound."""
        ledger_ids = self._by_txn.setdefault(branch.txn_id, {})
        self._branches += branch.number not in ledger_ids
        ledger_ids[branch.number] = ledger_id
        if self._branches > self._branches_max:
            oldest = next(iter(self._by_txn))
            self.forget(Branch(oldest, next(iter(self._by_txn[oldest]))))

    def forget(self, branch: Branch) -> None:
        ledger_ids = self._by_txn.get(branch.txn_id, {})
        if ledger_ids.pop(branch.number, None) is not None:
            self._branches -= 1
            if not ledger_ids:
                del self._by_txn[branch.txn_id]

    def forget_all(self, txn_id: TxnID) -> None:
        self._branches -= len(self._by_txn.pop(txn_id, {}))
