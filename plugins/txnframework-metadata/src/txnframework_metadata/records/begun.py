"""Headers of transactions that this process began or ended, remembered to save reading them."""

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
    """A bounded map by transaction; a forgotten item costs one read."""

    def __init__(self, transactions_max: int) -> None:
        self._transactions_max = transactions_max
        self._known: OrderedDict[TxnID, T] = OrderedDict()

    def note(self, txn_id: TxnID, known: T) -> None:
        """Remember ``known``, and forget the oldest item if the bound is exceeded."""
        self._known[txn_id] = known
        if len(self._known) > self._transactions_max:
            self._known.popitem(last=False)

    def take(self, txn_id: TxnID) -> T | None:
        """Return the remembered item and forget it."""
        return self._known.pop(txn_id, None)


class BegunHeaders(Remembered[Header]):
    """
    Headers of transactions that began in this process, as they were written, until the process tries to end them.

    The process can therefore add to its transaction and end it without reading the header first. A header never changes
    while its transaction is open, but another process may have ended it. Every write is conditional on the remembered
    version: it is refused if the transaction has ended, and the header is read.
    """

    async def header(self, store: IMetadataStore, txn_id: TxnID, principal: str) -> Header:
        """
        Return the header of a transaction that ``principal`` may add operations to.

        The transaction may have ended since; ``put_operations`` detects that.

        :raises TransactionNotFound: the transaction is unknown.
        :raises NotTransactionOwner: the transaction belongs to another principal.
        :raises TransactionConflict: the transaction has ended.
        """
        begun = self._known.get(txn_id)
        if begun is None:
            return await require_open(store, txn_id, principal)
        require_owner(begun, principal)
        return begun


class IBeginnings(Interface):
    """State that a coordinator of this family shares with buffers and pending-ack stores of the same process."""

    begun: BegunHeaders = Attribute("The headers of the transactions that it began.")


def headers_begun_by(coordinator: ITransactionCoordinator) -> BegunHeaders:
    """Return the headers that a coordinator remembers; an empty map if the coordinator belongs to another family."""
    known = IBeginnings(coordinator, None)
    return BegunHeaders(0) if known is None else known.begun
