"""One client's opening of a space's ledgers."""

from __future__ import annotations

from functools import partial

from zope.interface import implementer

from txnframework.interfaces import ILedgerStore, IManagedLedger, IRestorable, IWatch
from txnframework.model import (
    Append,
    Appended,
    Branch,
    Counted,
    EntryRange,
    LedgerEntry,
    LedgerSummary,
    Limit,
    Position,
    Remembered,
    Tail,
)
from txnframework_memory._link import Link, Pause, TailWatch
from txnframework_memory._rows import Row, Rows


@implementer(IManagedLedger)
class MemoryManagedLedger:
    """One client's handle of one row."""

    def __init__(self, row: Row, store_link: Link, pause: Pause) -> None:
        self.name = row.name
        self.link = Link(f"ledger {row.name}", pause)
        self.link.is_cut = store_link.is_cut
        self._row = row
        # Dicts keep the order of arming and opening, so that a run can be repeated exactly.
        self._watches: dict[TailWatch, None] = {}

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append in order to ``ledger_id`` and no other."""
        return await self.link.write(partial(self._row.append, entries, ledger_id))

    async def find_sequence(self, producer: str, sequence: int) -> Appended | None:
        """Return the copy of a sequence that counts, or None."""
        return await self.link.read(lambda: self._row.find_sequence(producer, sequence))

    async def remembered(self, producer: str, sequence: int) -> Remembered:
        """Return what is remembered of a producer, and how much of it above a sequence."""
        return await self.link.read(lambda: self._row.remembered(producer, sequence))

    async def tail(self) -> Tail:
        """Return the tail as one consistent fact."""
        return await self.link.read(self._row.tail)

    async def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of a range."""
        return await self.link.read(lambda: self._row.read(entries, limit))

    async def count(self, entries: EntryRange, messages_max: int) -> Counted:
        """Return how far ``messages_max`` messages reach into a range."""
        return await self.link.read(lambda: self._row.count(entries, messages_max))

    async def ledgers(self, after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """Return the first ledgers that are left behind one."""
        return await self.link.read(lambda: self._row.ledgers(after, items_max))

    async def find_time(self, published_ms: int) -> Position:
        """Return the position before the first entry of this time or later."""
        return await self.link.read(lambda: self._row.find_time(published_ms))

    async def roll(self) -> Tail:
        """Close the open ledger for ever and open the next."""
        return await self.link.write(self._row.roll)

    async def seal(self) -> Tail:
        """Refuse appends for ever."""
        return await self.link.write(self._row.seal)

    async def trim(self, ledger_id: int, aborted: frozenset[Branch]) -> int:
        """Drop closed ledgers below ``ledger_id``, the copies in them settled by what was aborted."""
        return await self.link.write(lambda: self._row.trim(ledger_id, aborted))

    async def watch(self) -> IWatch:
        """Return an armed watch on the tail."""
        return await self.link.read(self._arm)

    async def close(self) -> None:
        """Let go; may be repeated."""
        self.end()

    def end(self) -> None:
        """Let go at once."""
        self.link.close()
        for watch in tuple(self._watches):
            watch.end()
        self._watches.clear()

    def cut(self) -> None:
        """Lose the next reply and then reach nothing."""
        self.link.cut()

    def restore(self) -> None:
        """Reach the row again; every watch wakes."""
        self.link.restore()
        for watch in self._watches:
            watch.wake()

    def _arm(self) -> TailWatch:
        self._row.require_present()
        self._watches = {watch: None for watch in self._watches if not watch.is_closed}
        watch = self._row.watches.add(TailWatch(self._row.watches, self.link))
        self._watches[watch] = None
        return watch


@implementer(ILedgerStore, IRestorable)
class MemoryLedgerStore:
    """One client of the ledgers of a ``MemorySpace``."""

    def __init__(self, rows: Rows, pause: Pause) -> None:
        assert rows.identity is not None, "opened through MemorySpace.open_ledgers"
        self.identity: str = rows.identity
        self.link = Link(f"ledgers of {self.identity}", pause)
        self._rows = rows
        self._pause = pause
        self._opened: dict[MemoryManagedLedger, None] = {}

    async def create(self, name: str) -> IManagedLedger:
        """Make an empty one, or open the one that is there."""
        return await self.link.write(lambda: self._open(self._rows.create(name)))

    async def open(self, name: str) -> IManagedLedger:
        """Open it, or raise LedgerNotFound."""
        return await self.link.read(lambda: self._open(self._rows.find(name)))

    async def delete(self, name: str, upto_ledger_id: int | None) -> None:
        """Remove it with its data, unless it is a later one."""
        await self.link.write(lambda: self._rows.delete(name, upto_ledger_id))

    async def list_names(self, prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        """Return names with a prefix, in order, after ``after``."""
        return await self.link.read(lambda: self._rows.list_names(prefix, after, items_max))

    async def highest_txn_numbers(self) -> dict[int, int]:
        """Return the highest transaction number ever appended, by coordinator."""
        return await self.link.read(lambda: dict(self._rows.highest_txn_numbers))

    async def take_identity(self, identity: str) -> None:
        """Belong to a metadata store of another identity from now on."""
        await self.link.write(lambda: self._rows.take_identity(identity))
        self.identity = identity

    async def close(self) -> None:
        """Let go of every ledger; may be repeated."""
        self.crash()

    def crash(self) -> None:
        """Let go at once, as the kill of a process does."""
        self.link.close()
        for ledger in self._opened:
            ledger.end()
        self._opened.clear()

    def cut(self) -> None:
        """Lose the next reply of the store and of each of its ledgers, then reach nothing."""
        self.link.cut()
        for ledger in self._opened:
            ledger.cut()

    def restore(self) -> None:
        """Reach the space again."""
        self.link.restore()
        for ledger in self._opened:
            ledger.restore()

    def _open(self, row: Row) -> MemoryManagedLedger:
        ledger = MemoryManagedLedger(row, self.link, self._pause)
        self._opened = {opened: None for opened in self._opened if not opened.link.is_closed} | {ledger: None}
        return ledger
