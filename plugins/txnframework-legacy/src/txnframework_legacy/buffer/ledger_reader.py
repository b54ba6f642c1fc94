"""Reading a ledger from the last entry read, and applying its entries to a state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from txnframework.errors import EntryTrimmed, StoreMismatch
from txnframework.interfaces import IManagedLedger
from txnframework.model import EntryRange, LedgerEntry, Limit, Position, Tail
from txnframework.plugin import AbortRetention

F = TypeVar("F")

PAGE = Limit(1_000)


class ReadState(Protocol):
    """The state to which entries are applied, and the last entry applied."""

    upto: Position


class LedgerReader(Generic[F]):
    """
    One ledger, read by one task at a time.

    ``decode`` decodes an entry, ``apply`` applies it. ``trimmed`` gets the first remaining ledger when ledgers were
    trimmed before this process read them. The trimmed entries were decided, and no marker refers to them any more.
    """

    def __init__(
        self,
        state: ReadState,
        decode: Callable[[LedgerEntry, str], F],
        apply: Callable[[F, Position], None],
        trimmed: Callable[[int], None],
    ) -> None:
        self._state = state
        self._decode = decode
        self._apply = apply
        self._trimmed = trimmed
        self.entries = 0
        """The number of entries read."""
        self._is_begun = False
        self._lock = asyncio.Lock()

    def begin(self, first_ledger_id: int) -> None:
        """Start at this ledger, or at the state's last entry if that is later."""
        self._state.upto = max(self._state.upto, Position(first_ledger_id, -1))
        self._is_begun = True

    async def catch_up(self, ledger: IManagedLedger) -> Tail:
        """Apply every entry that was confirmed before this call; return the tail at the call."""
        tail = await ledger.tail()
        async with self._lock:
            if not self._is_begun:
                await self._skip_trimmed(ledger)
            while self._state.upto < tail.last_confirmed:
                try:
                    await self._read_page(ledger, tail.last_confirmed)
                except EntryTrimmed:
                    await self._skip_trimmed(ledger)
        return tail

    async def _read_page(self, ledger: IManagedLedger, upto: Position) -> None:
        """Read and apply one page. An entry that cannot be decoded raises its error; the next call reads it again."""
        entries = await ledger.read(EntryRange(self._state.upto, upto), PAGE)
        for entry in entries:
            self._apply(self._decode(entry, ledger.name), entry.position)
            self.entries += 1
        if not entries:
            self._state.upto = max(self._state.upto, upto)

    async def _skip_trimmed(self, ledger: IManagedLedger) -> None:
        (first, *_) = await ledger.ledgers(-1, 1)
        self._trimmed(first.ledger_id)
        self.begin(first.ledger_id)


class TrimDelay:
    """The time after a trim in which a reader may still hold, and judge, some of the trimmed entries."""

    def __init__(self, retention: AbortRetention) -> None:
        self._retention = retention
        self._since_ms: int | None = None

    def is_over(self) -> bool:
        """
        Return whether the waiting time is over; call this after each trim.

        The time begins with the first trim after the previous wait ended.
        """
        since_ms = self._retention.monotonic_ms() if self._since_ms is None else self._since_ms
        is_over = self._retention.is_over(since_ms)
        self._since_ms = None if is_over else since_ms
        return is_over


async def require_not_restored(ledger: IManagedLedger, upto: Position) -> None:
    """
    Verify that a snapshot taken at ``upto`` does not refer to entries beyond the ledger's end.

    :raises StoreMismatch: the ledger was restored from a backup.
    """
    tail = await ledger.tail()
    if upto > tail.end:
        raise StoreMismatch(
            f"a snapshot of {ledger.name} was taken at {upto}, but the ledger ends at {tail.last_confirmed};"
            " it was restored from a backup"
        )
