"""Headers to put operations by: as this process began them, or else as they stand."""

from __future__ import annotations

from zope.interface import Interface

from txnframework.interfaces import IMetadataStore, ITransactionCoordinator
from txnframework.model.ids import TxnID
from txnframework_metadata.records.operations import require_open, require_owner
from txnframework_metadata.records.views import Header


class IBeginnings(Interface):
    """What a coordinator of this family remembers, for buffers and pending-ack stores of the same process."""

    def begun(txn_id: TxnID) -> Header | None:
        """
        Return the header of a transaction as it was put here; None if that is not remembered, or its end was tried.

        The header of an open transaction never changes. So it stands as it is returned, or the transaction has ended,
        and whatever is put on the condition of its version is refused.
        """


class Beginnings:
    """The headers of transactions that are added to: one that was begun here is named without being read."""

    def __init__(self, store: IMetadataStore, coordinator: ITransactionCoordinator) -> None:
        self._store = store
        # That of another family begins none of this one.
        self._known = IBeginnings(coordinator, None)

    async def header(self, txn_id: TxnID, principal: str) -> Header:
        """
        Return the header of a transaction that ``principal`` may add to, to put operations by.

        It may have ended since; ``put_operations`` finds out.

        :raises TransactionNotFound: it is not known.
        :raises NotTransactionOwner: it belongs to somebody else.
        :raises TransactionConflict: it has ended.
        """
        begun = None if self._known is None else self._known.begun(txn_id)
        if begun is None:
            return await require_open(self._store, txn_id, principal)
        require_owner(begun, principal)
        return begun
