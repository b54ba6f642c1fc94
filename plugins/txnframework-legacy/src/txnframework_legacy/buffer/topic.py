"""One topic, as this process has read it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import IManagedLedger
from txnframework.model import Branch, Position, Tail
from txnframework.plugin import AbortRetention
from txnframework_legacy.buffer.ledger_reader import LedgerReader, TrimDelay, require_not_restored
from txnframework_legacy.buffer.markers import Marker, read_entry
from txnframework_legacy.buffer.snapshots import Snapshots
from txnframework_legacy.buffer.state import TopicState


class TopicReader:
    """Reads the topic's ledger from the last entry read, starting at the last snapshot."""

    def __init__(
        self, ledger: IManagedLedger, snapshots: Snapshots, retention: AbortRetention, snapshot_entries: int
    ) -> None:
        self.state = TopicState()
        self._ledger = ledger
        self._snapshots = snapshots
        self._trim_delay = TrimDelay(retention)
        self._snapshot_entries = snapshot_entries
        self._snapshot_due_at = snapshot_entries
        self._first_ledger_id = -1
        self._reader: LedgerReader[Branch | Marker | None] | None = None
        self._beginning = asyncio.Lock()

    async def catch_up(self) -> Tail:
        """Apply every entry that was confirmed before this call to ``state``; return the tail at the call."""
        reader = await self._begun()
        tail = await reader.catch_up(self._ledger)
        if reader.entries >= self._snapshot_due_at:
            self._snapshot_due_at = reader.entries + self._snapshot_entries
            with suppress(TxnFrameworkError):  # the previous snapshot is still valid
                (first, *_) = await self._ledger.ledgers(-1, 1)
                await self._snapshots.write(self.state, first.ledger_id)
        return tail

    def trimmed(self, first_ledger_id: int) -> None:
        """
        Forget the entries before a ledger, after the time in which a reader may still hold some of them.

        A recovering process holds none of them. Snapshots therefore omit them immediately, and the next snapshot is due
        now.
        """
        if first_ledger_id > self._first_ledger_id and self._snapshots.exist:
            self._snapshot_due_at = 0
        self._first_ledger_id = first_ledger_id
        self.state.without(first_ledger_id, forget_aborted=self._trim_delay.is_over())

    async def _begun(self) -> LedgerReader[Branch | Marker | None]:
        """Return the reader; restore the last snapshot first."""
        async with self._beginning:
            if self._reader is None:
                state = await self._snapshots.last()
                (first, *_) = await self._ledger.ledgers(-1, 1)
                if state is not None and state.upto >= Position(first.ledger_id, -1):
                    await require_not_restored(self._ledger, state.upto)
                    state.without(first.ledger_id, forget_aborted=True)
                    self.state = state
                self._first_ledger_id = first.ledger_id
                # Another process may trim entries before this process reads them. All of them were decided, but a
                # reader may still hold some of them.
                self._reader = LedgerReader(self.state, read_entry, self.state.apply, self._skip)
                self._reader.begin(first.ledger_id)
            return self._reader

    def _skip(self, first_ledger_id: int) -> None:
        self.state.without(first_ledger_id, forget_aborted=False)
