"""Intents: which branches this process has announced as writers, and the record that comes before their first entry."""

from __future__ import annotations

from collections import OrderedDict

from txnframework.errors import LedgerSealed
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model.ids import Branch, TxnID
from txnframework.model.records import WriteOperation
from txnframework_metadata._operations import put_operations, require_family, require_open
from txnframework_metadata._options import BufferOptions


class Intents:
    """
    One write operation for each (branch, open ledger), put before the first append to it.

    A branch is noted here only once its record stands, and nothing that may be read is decided by what is noted here: a
    record that could not be written holds nobody back. Forgetting costs one more record.
    """

    def __init__(self, segment: str, ledger: IManagedLedger, store: IMetadataStore, options: BufferOptions) -> None:
        self._segment = segment
        self._ledger = ledger
        self._store = store
        self._options = options
        self._ledger_ids: OrderedDict[Branch, int] = OrderedDict()

    async def admit(self, branch: Branch, principal: str) -> int:
        """
        Return the ledger that ``branch`` may append to, its intent durable.

        :raises TransactionConflict: the transaction has ended.
        :raises TransactionNotFound: it is not known.
        :raises NotTransactionOwner: it belongs to another principal.
        :raises LedgerSealed: the segment takes no more entries.
        :raises OutcomeUnknown: the intent may stand; there is no entry for it.
        """
        require_family(branch.txn_id, self._segment)
        known = self._ledger_ids.get(branch)
        if known is not None and not self._options.check_every_append:
            return known
        header = await require_open(self._store, branch.txn_id, principal)
        if known is not None:
            return known
        tail = await self._ledger.tail()
        if tail.sealed:
            raise LedgerSealed(self._segment)
        document = WriteOperation(
            branch=branch.number,
            segment=self._segment,
            ledger=tail.open_ledger_id,
            after=str(tail.last_confirmed),
        )
        await put_operations(self._store, header, [document], self._options.page_records)
        self._ledger_ids[branch] = tail.open_ledger_id
        if len(self._ledger_ids) > self._options.intents_max:
            self._ledger_ids.popitem(last=False)
        return tail.open_ledger_id

    def closed(self, branch: Branch) -> None:
        """The ledger that ``branch`` was admitted to takes no more entries."""
        self._ledger_ids.pop(branch, None)

    def forget(self, txn_id: TxnID) -> None:
        """The transaction has ended: a further send looks at its header again."""
        for branch in [known for known in self._ledger_ids if known.txn_id == txn_id]:
            del self._ledger_ids[branch]
