"""One topic, as this process has read it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from txnframework.errors import EntryTrimmed, StoreMismatch, TxnFrameworkError
from txnframework.interfaces import IManagedLedger
from txnframework.model import EntryRange, Limit, Position, Tail
from txnframework.plugin import AbortRetention
from txnframework_legacy.buffer.markers import read_entry
from txnframework_legacy.buffer.snapshots import Snapshots
from txnframework_legacy.buffer.state import TopicState

PAGE = Limit(1_000)


class TopicReader:
    """Reads the topic's ledger on from the last entry read, starting at the last snapshot."""

    def __init__(
        self, ledger: IManagedLedger, snapshots: Snapshots, retention: AbortRetention, snapshot_entries: int
    ) -> None:
        self.state = TopicState()
        self._ledger = ledger
        self._snapshots = snapshots
        self._retention = retention
        self._snapshot_entries = snapshot_entries
        self._since_snapshot = 0
        self._trimmed_ms: int | None = None
        self._first_ledger_id = -1
        self._is_begun = False
        self._reading = asyncio.Lock()

    async def catch_up(self) -> Tail:
        """Apply every entry that was confirmed before this call to ``state``; return the tail at the call."""
        tail = await self._ledger.tail()
        async with self._reading:
            if not self._is_begun:
                await self._begin()
            while self.state.upto < tail.last_confirmed:
                try:
                    await self._read_on(tail.last_confirmed)
                except EntryTrimmed:
                    # Another process trimmed entries before this process read them. All of them were decided. Of the
                    # aborted ones no entry is left, so their branches are not needed.
                    await self._skip_to_first()
        if self._since_snapshot >= self._snapshot_entries:
            self._since_snapshot = 0
            with suppress(TxnFrameworkError):  # the previous snapshot is still valid
                (first, *_) = await self._ledger.ledgers(-1, 1)
                await self._snapshots.write(self.state, first.ledger_id)
        return tail

    def trimmed(self, first_ledger_id: int) -> None:
        """
        Forget the entries before a ledger, after the time in which a reader may still hold some of them.

        A recovering process holds none of them. Snapshots therefore omit them at once, and the next snapshot is due
        now.
        """
        if first_ledger_id > self._first_ledger_id and self._snapshots.are_written:
            self._since_snapshot = self._snapshot_entries
        self._first_ledger_id = first_ledger_id
        now_ms = self._retention.now_ms()
        since_ms = self._trimmed_ms if self._trimmed_ms is not None else now_ms
        due = self._retention.is_over(since_ms)
        self._trimmed_ms = None if due else since_ms
        self.state.without(first_ledger_id, lambda: due)

    async def _begin(self) -> None:
        state = await self._snapshots.last()
        (first, *_) = await self._ledger.ledgers(-1, 1)
        before = Position(first.ledger_id, -1)
        if state is not None and state.upto >= before:
            tail = await self._ledger.tail()
            if state.upto > max(tail.last_confirmed, Position(tail.open_ledger_id, -1)):
                raise StoreMismatch(
                    f"a snapshot of {self._ledger.name} was taken at {state.upto}, and it ends at"
                    f" {tail.last_confirmed}; it was restored from a backup"
                )
            state.without(first.ledger_id, lambda: True)
            self.state = state
        else:
            self.state.upto = before
        self._first_ledger_id = first.ledger_id
        self._is_begun = True

    async def _read_on(self, upto: Position) -> None:
        """Read and apply one page."""
        entries = await self._ledger.read(EntryRange(self.state.upto, upto), PAGE)
        if not entries:
            self.state.upto = max(self.state.upto, upto)
            return
        found = [(read_entry(entry, self._ledger.name), entry.position) for entry in entries]
        for one, position in found:
            self.state.apply(one, position)
        self._since_snapshot += len(found)

    async def _skip_to_first(self) -> None:
        (first, *_) = await self._ledger.ledgers(-1, 1)
        self.state.without(first.ledger_id, lambda: False)
        self.state.upto = max(self.state.upto, Position(first.ledger_id, -1))
