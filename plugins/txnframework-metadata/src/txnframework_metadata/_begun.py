"""How the headers stand of transactions that this process began."""

from __future__ import annotations

from collections import OrderedDict

from txnframework.model.ids import TxnID
from txnframework_metadata._views import Header


class BegunHeaders:
    """
    A bounded memory of headers as they were put, so that whoever began a transaction ends it without reading it first.

    What is kept may be out of date: another process may have ended the transaction. The compare-and-set names the
    version that is kept, so it is refused then, and the header is read. One that is forgotten costs that read.
    """

    def __init__(self, headers_max: int) -> None:
        self._headers_max = headers_max
        self._headers: OrderedDict[TxnID, Header] = OrderedDict()

    def note(self, header: Header) -> None:
        """Remember a header, and forget the oldest one beyond the bound."""
        self._headers[header.transaction.txn_id] = header
        if len(self._headers) > self._headers_max:
            self._headers.popitem(last=False)

    def take(self, txn_id: TxnID) -> Header | None:
        """Return a header and forget it: once its end was tried it is not what was put any more."""
        return self._headers.pop(txn_id, None)
