"""Reading a ledger on from the last entry read, and applying its entries to a state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from txnframework.errors import EntryTrimmed
from txnframework.interfaces import IManagedLedger
from txnframework.model import EntryRange, LedgerEntry, Limit, Position, Tail

F = TypeVar("F")

PAGE = Limit(1_000)


class State(Protocol):
    """The state to which entries are applied, and the last entry applied."""

    upto: Position


class Following(Generic[F]):
    """
    One ledger, read by one task at a time.

    ``decode`` decodes an entry, ``apply`` applies it. ``skipped`` gets the first remaining ledger when ledgers were
    trimmed before this process read them. The trimmed entries were decided, and no marker refers to them any more.
    """

    def __init__(
        self,
        state: State,
        decode: Callable[[LedgerEntry, str], F],
        apply: Callable[[F, Position], None],
        skipped: Callable[[int], None],
    ) -> None:
        self._state = state
        self._decode = decode
        self._apply = apply
        self._skipped = skipped
        self.entries = 0
        """The number of entries read."""
        self._is_begun = False
        self._reading = asyncio.Lock()

    async def catch_up(self, ledger: IManagedLedger) -> Tail:
        """Apply every entry that was confirmed before this call; return the tail at the call."""
        tail = await ledger.tail()
        async with self._reading:
            if not self._is_begun:
                await self._skip(ledger)
                self._is_begun = True
            while self._state.upto < tail.last_confirmed:
                try:
                    await self._read_on(ledger, tail.last_confirmed)
                except EntryTrimmed:
                    await self._skip(ledger)
        return tail

    async def _read_on(self, ledger: IManagedLedger, upto: Position) -> None:
        """Read and apply one page. An entry that cannot be decoded raises its error; the next call reads it again."""
        entries = await ledger.read(EntryRange(self._state.upto, upto), PAGE)
        for entry in entries:
            self._apply(self._decode(entry, ledger.name), entry.position)
            self.entries += 1
        if not entries:
            self._state.upto = max(self._state.upto, upto)

    async def _skip(self, ledger: IManagedLedger) -> None:
        (first, *_) = await ledger.ledgers(-1, 1)
        self._skipped(first.ledger_id)
        self._state.upto = max(self._state.upto, Position(first.ledger_id, -1))
