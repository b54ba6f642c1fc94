"""Large transactions: those that no single marker could list write to an own ledger and store references to it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from txnframework.environment import Environment
from txnframework.errors import LedgerNotFound
from txnframework.model import Append, TxnID
from txnframework_sidecar.model.index import TransactionIndex
from txnframework_sidecar.model.markers import encode_reference
from txnframework_sidecar.model.parts import fits
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.own_ledgers import OwnLedgers


@dataclass
class _Sent:
    """The amount that this process has sent in a transaction; ``bytes`` of entries."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0

    def is_too_much(self, bounds: SidecarOptions) -> bool:
        """Return whether no single marker could list all of it; a single entry always fits into one."""
        return self.entries > 1 and (
            self.entries > bounds.marker_spans_max or not fits(self.messages, self.bytes, bounds)
        )


class Large:
    """
    Decides when a transaction starts to write to an own ledger.

    Processes need not agree on this. A message counts wherever it is stored, because an entry of the sidecar either
    holds it or refers to it. Both kinds of entries are compared for duplicates alike. Each process decides by what it
    has sent itself, and by what it has read of others. Earlier messages stay in the sidecar.
    """

    def __init__(
        self, index: TransactionIndex, own: OwnLedgers, environment: Environment, options: SidecarOptions
    ) -> None:
        self._index = index
        self._own = own
        self._environment = environment
        self._options = options
        self._sent: OrderedDict[TxnID, _Sent] = OrderedDict()

    async def referred(self, txn_id: TxnID, entries: tuple[Append, ...]) -> tuple[Append, ...]:
        """
        Return the sidecar's entries for these: the entries themselves, or references once they are stored in an own
        ledger.

        After a crash before the references are appended, nothing was sent. Entries without a reference are deleted with
        their ledger.
        """
        if not self._is_large(txn_id, entries):
            return entries
        try:
            positions = await self._own.append(txn_id, entries)
        except LedgerNotFound:
            return entries  # the transaction or topic has ended; the append to the sidecar reports it
        now_ms = self._environment.now_ms()
        return tuple(encode_reference(entry, at, now_ms) for entry, at in zip(entries, positions, strict=True))

    def _is_large(self, txn_id: TxnID, entries: tuple[Append, ...]) -> bool:
        """Count entries that are about to be sent, and return whether their transaction is large."""
        sent = self._sent.setdefault(txn_id, _Sent())
        self._sent.move_to_end(txn_id)
        if len(self._sent) > self._options.branches_max:
            self._sent.popitem(last=False)  # if it continues, its count restarts; the index still knows an own ledger
        sent.entries += len(entries)
        sent.messages += sum(entry.messages for entry in entries)
        sent.bytes += sum(len(entry.data) for entry in entries)
        return sent.is_too_much(self._options) or self._index.has_own_ledger(txn_id)
