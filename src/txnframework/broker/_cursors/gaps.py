"""Gaps between ledgers: where a cursor's mark ends one ledger, and a range of done entries begins the next."""

from __future__ import annotations

from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import IManagedLedger
from txnframework.model.cursor import Cursor, advance
from txnframework.model.positions import Position

LEDGERS_MAX = 100
"""How many ledgers are looked at for one gap."""


class Gaps:
    """
    Moves the mark of a cursor over the places between two ledgers, at which no entry can be.

    Positions alone do not tell whether an entry can be between the last one of a ledger and the first one of another.
    The ledgers do. Without this the mark of a subscription stays before its first ledger, however much is done.
    """

    def __init__(self, ledger: IManagedLedger | None) -> None:
        self._ledger = ledger
        # The last gap in which an entry was found that is not done: a closed ledger does not change.
        self._open: tuple[Position, Position] | None = None

    async def closed(self, cursor: Cursor) -> Cursor:
        """Return the cursor with its mark moved as far as the ledgers allow; as it is where they cannot be asked."""
        while cursor.deleted and self._may_touch(cursor.mark_delete, cursor.deleted[0][0]):
            try:
                touches = await self._touches(cursor.mark_delete, cursor.deleted[0][0])
            except TxnFrameworkError:
                return cursor  # the ranges say the same, at more length: another write moves the mark
            if not touches:
                self._open = cursor.mark_delete, cursor.deleted[0][0]
                return cursor
            cursor = advance(cursor, cursor.deleted[0][1])
        return cursor

    def _may_touch(self, mark: Position, first: Position) -> bool:
        return first.entry_id == 0 and first.ledger_id > mark.ledger_id and (mark, first) != self._open

    async def _touches(self, mark: Position, first: Position) -> bool:
        """Return whether no ledger holds an entry between the mark and the first entry of a later ledger."""
        if self._ledger is None:
            return False
        for summary in await self._ledger.ledgers(mark.ledger_id - 1, LEDGERS_MAX):
            if summary.ledger_id >= first.ledger_id:
                return True
            if summary.entries and summary.last > mark:
                return False
        return False
