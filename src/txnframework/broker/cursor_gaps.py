"""Gaps between two ledgers, which a cursor passes."""

from __future__ import annotations

from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import IManagedLedger
from txnframework.model.cursor import Cursor, advance
from txnframework.model.positions import Position

LEDGERS_MAX = 100
"""The most ledgers that are read for one gap."""


class Gaps:
    """
    Moves the mark-delete position of a cursor across the gap between two ledgers, where no entry can be.

    Positions alone do not show whether an entry lies between the last entry of one ledger and the first entry of
    another. The ledgers do. Without them the mark-delete position of a subscription would never pass the first gap.
    """

    def __init__(self, ledger: IManagedLedger | None) -> None:
        self._ledger = ledger
        # The last gap in which an unacknowledged entry was found; closed ledgers do not change.
        self._open: tuple[Position, Position] | None = None

    async def closed(self, cursor: Cursor) -> Cursor:
        """
        Return the cursor with its mark-delete position moved as far as the ledgers allow; unchanged if they cannot be
        read.
        """
        while cursor.deleted and self._may_touch(cursor.mark_delete, cursor.deleted.first[0]):
            try:
                touches = await self._touches(cursor.mark_delete, cursor.deleted.first[0])
            except TxnFrameworkError:
                return cursor  # the longer form with ranges has the same meaning; a later write moves the mark
            if not touches:
                self._open = cursor.mark_delete, cursor.deleted.first[0]
                return cursor
            cursor = advance(cursor, cursor.deleted.first[1])
        return cursor

    def _may_touch(self, mark: Position, first: Position) -> bool:
        return first.entry_id == 0 and first.ledger_id > mark.ledger_id and (mark, first) != self._open

    async def _touches(self, mark: Position, first: Position) -> bool:
        """
        Return whether no ledger holds an entry between the mark-delete position and the first entry of a later ledger.
        """
        if self._ledger is None:
            return False
        for summary in await self._ledger.ledgers(mark.ledger_id - 1, LEDGERS_MAX):
            if summary.ledger_id >= first.ledger_id:
                return True
            if summary.entries and summary.last > mark:
                return False
        return False
