"""What a process remembers of transactions that it began or ended, to save the reading of their headers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from txnframework.model.ids import TxnID

T = TypeVar("T")


class Remembered(Generic[T]):
    """
    A bounded memory by transaction; what is forgotten costs a read.

    Of one that began: its header as it was put, so that whoever began it adds to it and ends it without reading it
    first. It may be out of date, as another process may have ended the transaction; what is put names the version that
    is kept, so it is refused then, and the header is read. Of one that ended: how, which never changes.
    """

    def __init__(self, transactions_max: int) -> None:
        self._transactions_max = transactions_max
        self._known: OrderedDict[TxnID, T] = OrderedDict()

    def note(self, txn_id: TxnID, known: T) -> None:
        """Remember it, and forget the oldest one beyond the bound."""
        self._known[txn_id] = known
        if len(self._known) > self._transactions_max:
            self._known.popitem(last=False)

    def get(self, txn_id: TxnID) -> T | None:
        """Return what is known."""
        return self._known.get(txn_id)

    def take(self, txn_id: TxnID) -> T | None:
        """Return what is known and forget it: a header is not as it was put any more once its end was tried."""
        return self._known.pop(txn_id, None)
