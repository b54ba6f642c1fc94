"""The ledger of a segment that is only looked at."""

from __future__ import annotations

from typing import NoReturn

from zope.interface import implementer

from txnframework.errors import InvalidInput
from txnframework.interfaces import IManagedLedger, IWatch
from txnframework.model.ids import Branch
from txnframework.model.ledger import Append, Appended, LedgerEntry, LedgerSummary, MessageCount, Tail, WindowState
from txnframework.model.positions import EntryRange, Limit, Position


@implementer(IManagedLedger)
class InspectedLedger:
    """
    Reads a ledger, and refuses whatever would change it.

    It provides no other role of the ledger behind it, so nothing can be appended through such a role either.
    """

    location: object = None
    reference: object = None

    def __init__(self, ledger: IManagedLedger) -> None:
        self.name: str = ledger.name
        self._ledger = ledger

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    async def find_sequence(self, producer: str, sequence: int) -> Appended | None:
        """Return the stored copy of a sequence that counts, or None."""
        return await self._ledger.find_sequence(producer, sequence)

    async def remembered(self, producer: str, sequence: int) -> WindowState:
        """Return which messages of a producer are remembered."""
        return await self._ledger.remembered(producer, sequence)

    async def tail(self) -> Tail:
        """Return a consistent view of the tail."""
        return await self._ledger.tail()

    async def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of a range."""
        return await self._ledger.read(entries, limit)

    async def count(self, entries: EntryRange, messages_max: int) -> MessageCount:
        """Return how far so many messages reach into a range."""
        return await self._ledger.count(entries, messages_max)

    async def ledgers(self, after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """Return the first ledgers that are left after a ledger."""
        return await self._ledger.ledgers(after, items_max)

    async def find_time(self, published_ms: int) -> Position:
        """Return the position before the first entry of this time or later."""
        return await self._ledger.find_time(published_ms)

    async def roll(self) -> Tail:
        """Refuse."""
        self._refuse()

    async def seal(self) -> Tail:
        """Refuse."""
        self._refuse()

    async def trim(self, ledger_id: int, aborted: frozenset[Branch]) -> int:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    async def watch(self) -> IWatch:
        """Return an armed watch on the tail."""
        return await self._ledger.watch()

    async def close(self) -> None:
        """Release the ledger."""
        await self._ledger.close()

    def _refuse(self) -> NoReturn:
        raise InvalidInput(f"{self.name} is open to be inspected only, and cannot be changed")
