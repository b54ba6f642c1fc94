"""Large transactions: which ones no single marker could list, and what they write instead of their messages."""

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
    """What this process has sent in a transaction."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0

    def is_too_much(self, bounds: SidecarOptions) -> bool:
        """Whether no single marker could list it, wherever it stands; one entry always has one."""
        return self.entries > 1 and (
            self.entries > bounds.marker_spans_max or not fits(self.messages, self.bytes, bounds)
        )


class Large:
    """
    From where on a transaction writes to a ledger of its own.

    Nobody has to agree on it: a message counts wherever it stands, by the entry of the sidecar that holds it or refers
    to it, and these are compared with each other alike. So each process decides by what it has sent itself, and by what
    it happens to have read of others; what was sent before stays where it is.
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
        Return what the sidecar is to hold for entries: themselves or, once they are stored elsewhere, references.

        Killed between the two, nothing was sent: what no reference names goes with its ledger.
        """
        if not self._is_large(txn_id, entries):
            return entries
        try:
            positions = await self._own.append(txn_id, entries)
        except LedgerNotFound:
            return entries  # the transaction is over, or the topic is gone: whoever appends to the sidecar is told so
        now_ms = self._environment.now_ms()
        return tuple(encode_reference(entry, at, now_ms) for entry, at in zip(entries, positions, strict=True))

    def _is_large(self, txn_id: TxnID, entries: tuple[Append, ...]) -> bool:
        """Count entries that are about to be sent, and judge what that makes of their transaction."""
        sent = self._sent.setdefault(txn_id, _Sent())
        self._sent.move_to_end(txn_id)
        if len(self._sent) > self._options.branches_max:
            self._sent.popitem(last=False)  # counted anew, should it go on: what stands in the sidecar counts as well
        sent.entries += len(entries)
        sent.messages += sum(entry.messages for entry in entries)
        sent.bytes += sum(len(entry.data) for entry in entries)
        return sent.is_too_much(self._options) or self._index.has_own_ledger(txn_id)
