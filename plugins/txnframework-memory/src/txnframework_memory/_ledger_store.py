"""One client's access to the ledgers of a space."""

from __future__ import annotations

from functools import partial

from zope.interface import implementer

from txnframework.interfaces import (
    ICopyableLedgerStore,
    IManagedLedger,
    IRestorable,
    IWatch,
)
from txnframework.model import (
    Append,
    Appended,
    Branch,
    EntryRange,
    LedgerEntry,
    LedgerShape,
    LedgerSummary,
    Limit,
    MessageCount,
    Position,
    RememberedSequence,
    StoredEntry,
    Tail,
    WindowState,
)
from txnframework_memory._ledgers import StoredLedger
from txnframework_memory._link import Link, Pause, TailWatch
from txnframework_memory._server import Server


@implementer(IManagedLedger)
class MemoryManagedLedger:
    """One client's handle of one managed ledger."""

    def __init__(self, row: StoredLedger, server: Server, store_link: Link, pause: Pause) -> None:
        self.name = row.name
        self.location: object = server
        self.reference: object = row
        self.link = Link(f"ledger {row.name}", pause, server.locks.whole)
        self.link.is_cut = store_link.is_cut
        self._row = row
        self._server = server
        # Dicts keep the order of arming and opening, so that a run can be repeated exactly.
        self._watches: dict[TailWatch, None] = {}

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append entries in order to ``ledger_id`` only."""
        return await self.link.write(partial(self._row.append, entries, ledger_id))

    async def find_sequence(self, producer: str, sequence: int) -> Appended | None:
        """Return the copy of a sequence that counts, or None."""
        return await self.link.read(lambda: self._row.find_sequence(producer, sequence))

    async def remembered(self, producer: str, sequence: int) -> WindowState:
        """Return what the store remembers about a producer, and how many of its sequences are above ``sequence``."""
        return await self.link.read(lambda: self._row.remembered(producer, sequence))

    async def tail(self) -> Tail:
        """Return the tail as one consistent value."""
        return await self.link.read(self._row.tail)

    async def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of a range."""
        return await self.link.read(lambda: self._row.read(entries, limit))

    async def count(self, entries: EntryRange, messages_max: int) -> MessageCount:
        """Return how far ``messages_max`` messages reach into a range."""
        return await self.link.read(lambda: self._row.count(entries, messages_max))

    async def ledgers(self, after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """Return the first remaining ledgers after the ledger ``after``."""
        return await self.link.read(lambda: self._row.ledgers(after, items_max))

    async def find_time(self, published_ms: int) -> Position:
        """Return the position before the first entry published at this time or later."""
        return await self.link.read(lambda: self._row.find_time(published_ms))

    async def roll(self) -> Tail:
        """Close the open ledger permanently, and open the next one."""
        return await self.link.write(self._row.roll)

    async def seal(self) -> Tail:
        """Refuse appends permanently."""
        return await self.link.write(self._row.seal)

    async def trim(self, ledger_id: int, aborted: frozenset[Branch]) -> int:
        """Remove closed ledgers below ``ledger_id``; ``aborted`` settles which copies of sequences in them count."""
        return await self.link.write(lambda: self._row.trim(ledger_id, aborted))

    async def watch(self) -> IWatch:
        """Return an armed watch on the tail."""
        return await self.link.read(self._arm)

    async def close(self) -> None:
        """Close the handle; may be repeated."""
        self.end()

    def end(self) -> None:
        """Close the handle immediately."""
        self.link.close()
        for watch in tuple(self._watches):
            watch.end()
        self._watches.clear()

    def cut(self) -> None:
        """Lose the next reply, then lose the connection."""
        self.link.cut()

    def restore(self) -> None:
        """Restore the connection; every watch wakes."""
        self.link.restore()
        for watch in self._watches:
            watch.wake()

    def _arm(self) -> TailWatch:
        self._row.require_present()
        self._watches = {watch: None for watch in self._watches if not watch.is_closed}
        watch = self._row.watches.add(TailWatch(self._row.watches, self.link))
        self._watches[watch] = None
        return watch


@implementer(ICopyableLedgerStore, IRestorable)
class MemoryLedgerStore:
    """One client of the ledgers of a ``MemorySpace``."""

    def __init__(self, server: Server, pause: Pause) -> None:
        self._server = server
        rows = server.rows
        assert rows.identity is not None, "opened through MemorySpace.open_ledgers"
        self.identity: str = rows.identity
        self.location: object = server
        self.link = Link(f"ledgers of {self.identity}", pause)
        self._rows = rows
        self._pause = pause
        self._opened: dict[MemoryManagedLedger, None] = {}

    async def create(self, name: str) -> IManagedLedger:
        """Create an empty managed ledger, or open the existing one."""
        return await self.link.write(lambda: self._open(self._rows.create(name)))

    async def open(self, name: str) -> IManagedLedger:
        """Open a managed ledger, or raise LedgerNotFound."""
        return await self.link.read(lambda: self._open(self._rows.find(name)))

    async def delete(self, name: str, upto_ledger_id: int | None) -> None:
        """Delete a managed ledger with its data, unless it has a ledger with a higher id than ``upto_ledger_id``."""
        await self.link.write(lambda: self._rows.delete(name, upto_ledger_id))

    async def list_names(self, prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        """Return names with a prefix, in order, after ``after``."""
        return await self.link.read(lambda: self._rows.list_names(prefix, after, items_max))

    async def highest_txn_numbers(self) -> dict[int, int]:
        """Return the highest transaction number ever appended, by coordinator."""
        return await self.link.read(lambda: dict(self._rows.highest_txn_numbers))

    async def take_identity(self, identity: str) -> None:
        """Belong to a metadata store with another identity from now on."""
        await self.link.write(lambda: self._rows.take_identity(identity))
        self.identity = identity

    async def last_ledger_id(self) -> int:
        """Return the highest ledger id that was given."""
        return await self.link.read(lambda: self._rows.last_ledger_id)

    async def skip_ids(self, ledger_id: int, txn_numbers: dict[int, int]) -> None:
        """Give no ledger id up to ``ledger_id``, and raise the highest transaction numbers."""
        await self.link.write(lambda: self._rows.skip(ledger_id, txn_numbers))

    async def ledger_shape(self, name: str) -> LedgerShape:
        """Return what a managed ledger is apart from its entries and its window."""
        return await self.link.read(lambda: self._rows.find(name).shape())

    async def stored_entries(self, name: str, entries: EntryRange, limit: Limit) -> tuple[StoredEntry, ...]:
        """Return the first entries of the range, with their times."""
        return await self.link.read(lambda: self._rows.find(name).stored_entries(entries, limit))

    async def remembered_sequences(
        self, name: str, after: RememberedSequence | None, items_max: int
    ) -> tuple[RememberedSequence, ...]:
        """Return the first copies in the window behind ``after``."""
        return await self.link.read(lambda: self._rows.find(name).sequences(after, items_max))

    async def import_ledger(self, name: str, shape: LedgerShape) -> Position:
        """Create a managed ledger of this shape, or find it; return the last entry that was imported."""
        return await self.link.write(lambda: self._rows.import_row(name, shape))

    async def import_entries(self, name: str, entries: tuple[StoredEntry, ...]) -> None:
        """Add entries to a managed ledger that is being imported, all or none."""
        await self.link.write(lambda: self._rows.find(name).import_entries(entries))

    async def import_sequences(self, name: str, sequences: tuple[RememberedSequence, ...]) -> None:
        """Add copies to the window of a managed ledger that is being imported."""
        await self.link.write(lambda: self._rows.find(name).import_sequences(sequences))

    async def close(self) -> None:
        """Close the store and every handle; may be repeated."""
        self.crash()

    def crash(self) -> None:
        """Close the store immediately, as killing its process does."""
        self.link.close()
        for ledger in self._opened:
            ledger.end()
        self._opened.clear()

    def cut(self) -> None:
        """Lose the next reply of the store and of each handle, then lose the connection."""
        self.link.cut()
        for ledger in self._opened:
            ledger.cut()

    def restore(self) -> None:
        """Restore the connection."""
        self.link.restore()
        for ledger in self._opened:
            ledger.restore()

    def _open(self, row: StoredLedger) -> MemoryManagedLedger:
        ledger = MemoryManagedLedger(row, self._server, self.link, self._pause)
        self._opened = {opened: None for opened in self._opened if not opened.link.is_closed} | {ledger: None}
        return ledger
