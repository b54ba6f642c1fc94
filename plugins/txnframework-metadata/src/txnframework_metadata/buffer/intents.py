"""Intents: the branches that this process announced as writers, and the record that precedes their first entry."""

from __future__ import annotations

from collections import OrderedDict

from txnframework.errors import LedgerSealed
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model.ids import Branch, TxnID
from txnframework.model.records import WriteOperation
from txnframework_metadata.options import BufferOptions
from txnframework_metadata.records.operations import require_family, require_open
from txnframework_metadata.records.shared_operations import SharedOperations


class Intents:
    """
    One write operation for each (branch, open ledger), written before the branch's first append to it.

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
