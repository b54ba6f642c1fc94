"""What a process remembers of transactions that it began or ended, to save the reading of their headers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from zope.interface import Attribute, Interface

from txnframework.interfaces import IMetadataStore, ITransactionCoordinator
from txnframework.model.ids import TxnID
from txnframework_metadata.records.operations import require_open, require_owner
from txnframework_metadata.records.views import Header

T = TypeVar("T")


class Remembered(Generic[T]):
    """A bounded memory by transaction; what is forgotten costs a read."""

    def __init__(self, transactions_max: int) -> None:
        self._transactions_max = transactions_max
        self._known: OrderedDict[TxnID, T] = OrderedDict()

    def note(self, txn_id: TxnID, known: T) -> None:
        """Remember it, and forget the oldest one beyond the bound."""
        self._known[txn_id] = known
        if len(self._known) > self._transactions_max:
            self._known.popitem(last=False)

    def take(self, txn_id: TxnID) -> T | None:
        """Return what is known and forget it."""
        return self._known.pop(txn_id, None)


class BegunHeaders(Remembered[Header]):
    """
    The headers of transactions that began here, as they were put, until their end is tried.

    So whoever began a transaction adds to it and ends it without reading it first. Its header never changes while it is
    open, but another process may have ended it. What is put names the version that is kept, so it is refused then, and
    the header is read.
    """

    async def header(self, store: IMetadataStore, txn_id: TxnID, principal: str) -> Header:
        """
        Return the header of a transaction that ``principal`` may add to, to put operations by.

        It may have ended since; ``put_operations`` finds out.

        :raises TransactionNotFound: it is not known.
        :raises NotTransactionOwner: it belongs to somebody else.
        :raises TransactionConflict: it has ended.
        """
        begun = self._known.get(txn_id)
        if begun is None:
            return await require_open(store, txn_id, principal)
        require_owner(begun, principal)
        return begun


class IBeginnings(Interface):
    """What a coordinator of this family shares with buffers and pending-ack stores of the same process."""

    begun: BegunHeaders = Attribute("The headers of the transactions that it began.")


def headers_begun_by(coordinator: ITransactionCoordinator) -> BegunHeaders:
    """Return the headers that a coordinator remembers; none of them where it is of another family."""
    known = IBeginnings(coordinator, None)
    return BegunHeaders(0) if known is None else known.begun
