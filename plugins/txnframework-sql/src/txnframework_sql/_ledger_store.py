"""The ledger store in a SQL database, and its managed ledgers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.errors import Closed
from txnframework.interfaces import (
    ICopyableLedgerStore,
    ILedgerStore,
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
from txnframework.plugin import Provider, StoreContext
from txnframework_sql._backends import check_url, open_database
from txnframework_sql._database import Database, Entries
from txnframework_sql._options import LedgerOptions, for_postgresql, for_sqlite, with_defaults
from txnframework_sql._watch import Watch, Watches
from txnframework_sql.sqlite import Kind, SqliteConnection
from txnframework_sql.steps import appends, ledgers, reads, retention, store_copy
from txnframework_sql.steps.identities import known_ledger_identity, ledger_identity, take_ledger_identity
from txnframework_sql.steps.ledger_references import LedgerReference
from txnframework_sql.steps.ledgers import LedgerRef
from txnframework_sql.steps.statements import LedgerChange, Steps

T = TypeVar("T")

# The number of producers that one trim examines.
_PRODUCERS_A_TRIM = 100


@implementer(IManagedLedger)
class SqlManagedLedger:
    """A handle of a managed ledger; any number of handles in any number of processes may append and read."""

    def __init__(
        self,
        executor: Database,
        entries: Entries,
        watches: Watches,
        environment: Environment,
        options: LedgerOptions,
        managed: LedgerRef,
    ) -> None:
        self.name = managed.name
        self.location: object = executor.location
        self.reference: object = LedgerReference(managed, self.location, entries)
        self._executor = executor
        self._entries = entries
        self._watches = watches
        self._environment = environment
        self._options = options
        self.managed = managed
        self._armed: set[Watch] = set()
        self._idle_after = ""
        self._is_closed = False

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ledger ``ledger_id`` only."""
        if ledger_id is None and any(entry.branch is not None for entry in entries):
            raise ValueError("an entry with a branch is appended to the ledger that its intent names")
        now_ms = self._environment.now_ms()
        self._require_open()
        return await self._entries.append(self.managed, entries, ledger_id, now_ms)

    async def find_sequence(self, producer: str, sequence: int) -> Appended | None:
        """Return the valid copy of this sequence, or None."""
        return await self._read(lambda: appends.find_sequence(self.managed, producer, sequence))

    async def remembered(self, producer: str, sequence: int) -> WindowState:
        """Return what the ledger stores about a producer, and how many of its sequences are above the given one."""
        window = self._options.deduplication_window_sequences
        return await self._read(lambda: appends.remembered(self.managed, producer, sequence, window))

    async def tail(self) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, read at one moment."""
        self._require_open()
        return await self._entries.tail(self.managed)

    async def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        self._require_open()
        return await self._entries.read(self.managed, entries, limit)

    async def count(self, entries: EntryRange, messages_max: int) -> MessageCount:
        """Return how far ``messages_max`` messages reach into the range."""
        return await self._read(lambda: reads.count(self.managed, entries, messages_max))

    async def ledgers(self, after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """Return the first remaining ledgers after a ledger id."""
        return await self._read(lambda: ledgers.summaries(self.managed, after, items_max))

    async def find_time(self, published_ms: int) -> Position:
        """Return the position before the first entry that was appended at or after ``published_ms``."""
        return await self._read(lambda: reads.find_time(self.managed, published_ms))

    async def roll(self) -> Tail:
        """Close the open ledger permanently and open the next, unless it is sealed or empty."""
        return await self._write(lambda: ledgers.roll(self.managed))

    async def seal(self) -> Tail:
        """Refuse appends permanently; idempotent, with the same result."""
        return await self._write(lambda: ledgers.seal(self.managed))

    async def trim(self, ledger_id: int, aborted: frozenset[Branch]) -> int:
        """Remove closed ledgers below ``ledger_id``, in a bounded step; return the first remaining ledger."""
        # First finish an earlier trim that was interrupted.
        await self._remove_hidden()
        # Before the first ledger is removed: a crash in between leaves settled copies whose entries are still stored,
        # and those entries are decided in any case.
        below = min(ledger_id, (await self.tail()).open_ledger_id)
        await self._settle_copies(below, aborted)
        removed = 0
        while removed < self._options.trim_entries_max:
            hidden = await self._write(lambda: retention.hide_oldest(self.managed, below))
            if not hidden:
                break
            removed += hidden
            await self._remove_hidden()
        silent_since_ms = self._environment.now_ms() - self._options.producer_idle_ms
        self._idle_after = await self._write(
            lambda: retention.forget_idle_producers(self.managed, self._idle_after, silent_since_ms, _PRODUCERS_A_TRIM)
        )
        return await self._read(lambda: retention.first_ledger(self.managed))

    async def watch(self) -> IWatch:
        """Return an armed watch on the tail."""
        self._require_open()
        watch = await self._watches.arm(LedgerChange(self.managed.id))
        if self._is_closed:
            watch.end()
        self._require_open()
        self._armed = {armed for armed in self._armed if not armed.is_closed} | {watch}
        return watch

    async def close(self) -> None:
        """
        Close the handle.

        Running appends return their results normally. Idempotent.
        """
        self._is_closed = True
        for watch in self._armed:
            watch.end()
        self._armed.clear()

    async def _settle_copies(self, below: int, aborted: frozenset[Branch]) -> None:
        """Settle the window's copies in the closed ledgers below ``below``, if there are any."""
        if await self._read(lambda: retention.first_ledger(self.managed)) >= below:
            return
        page: retention.CopyPage | None = retention.FIRST_COPIES
        while page is not None:
            page = await self._settle_page(page, below, aborted)

    async def _settle_page(
        self, page: retention.CopyPage, below: int, aborted: frozenset[Branch]
    ) -> retention.CopyPage | None:
        """
        Settle some copies; return the page to continue with.

        The read blocks no writer, and usually finds nothing to settle.
        """
        copies, following = await self._read(lambda: retention.unsettled_copies(self.managed, page, below))
        if copies:
            await self._write(lambda: retention.settle_copies(self.managed, copies, aborted))
        return following

    async def _remove_hidden(self) -> None:
        while await self._write(lambda: retention.remove_hidden(self.managed.id)):
            pass

    async def _read(self, work: Callable[[], Steps[T]]) -> T:
        self._require_open()
        return await self._executor.read(work)

    async def _write(self, work: Callable[[], Steps[T]]) -> T:
        self._require_open()
        return await self._executor.write(work)

    def _require_open(self) -> None:
        if self._is_closed:
            raise Closed(f"ledger {self.name} was closed")


@implementer(ICopyableLedgerStore, IRestorable)
class SqlLedgerStore:
    """Managed ledgers in a SQL database that several processes use at the same time; confirmed writes are on disk."""

    def __init__(self, database: Database, environment: Environment, options: LedgerOptions, identity: str) -> None:
        self.identity = identity
        self.location: object = database.location
        self.database = database
        self._environment = environment
        self._options = options
        self._entries = database.entries(options)
        self._watches = Watches(database, lambda watches: database.wake_ups(watches, environment))

    async def create(self, name: str) -> IManagedLedger:
        """Create an empty managed ledger, or open the existing one."""
        now_ms = self._environment.now_ms()
        return self._handle(await self.database.write(lambda: ledgers.create(name, now_ms)))

    async def open(self, name: str) -> IManagedLedger:
        """Open the managed ledger, or raise LedgerNotFound."""
        return self._handle(await self.database.read(lambda: ledgers.find(name)))

    async def delete(self, name: str, upto_ledger_id: int | None) -> None:
        """Delete the managed ledger with its data, unless it is a later one; an absent one succeeds."""
        # The first commit deletes the name. After a crash before all data is removed, the next delete removes the rest.
        await self.database.write(lambda: ledgers.forget_name(name, upto_ledger_id))
        while await self.database.write(retention.remove_deleted):
            pass

    async def list_names(self, prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        """Return names that begin with ``prefix``, in order, after ``after``."""
        return await self.database.read(lambda: ledgers.list_names(prefix, after, items_max))

    async def highest_txn_numbers(self) -> dict[int, int]:
        """Return the highest transaction number ever appended, by coordinator."""
        return await self.database.read(ledgers.highest_numbers)

    async def take_identity(self, identity: str) -> None:
        """Bind the ledgers to a metadata store of another identity."""
        await self.database.write(lambda: take_ledger_identity(identity))
        self.identity = identity

    async def last_ledger_id(self) -> int:
        """Return the last ledger id that was given."""
        return await self.database.read(store_copy.last_ledger_id)

    async def skip_ids(self, ledger_id: int, txn_numbers: dict[int, int]) -> None:
        """Give no ledger id up to ``ledger_id``, and raise the highest transaction numbers."""
        await self.database.write(lambda: store_copy.skip_ids(ledger_id, txn_numbers))

    async def ledger_shape(self, name: str) -> LedgerShape:
        """Return what a managed ledger is apart from its entries and its window."""
        return await self.database.read(lambda: store_copy.shape_of(name))

    async def stored_entries(self, name: str, entries: EntryRange, limit: Limit) -> tuple[StoredEntry, ...]:
        """Return the first entries of the range, with their times."""
        return await self.database.read(lambda: store_copy.stored_entries(name, entries, limit))

    async def remembered_sequences(
        self, name: str, after: RememberedSequence | None, items_max: int
    ) -> tuple[RememberedSequence, ...]:
        """Return the first copies in the window behind ``after``."""
        return await self.database.read(lambda: store_copy.sequences_of(name, after, items_max))

    async def import_ledger(self, name: str, shape: LedgerShape) -> Position:
        """Create a managed ledger of this shape, or find it; return the last entry that was imported."""
        return await self.database.write(lambda: store_copy.import_ledger(name, shape))

    async def import_entries(self, name: str, entries: tuple[StoredEntry, ...]) -> None:
        """Add entries to a managed ledger that is being imported, all or none."""
        if entries:
            await self.database.write(lambda: store_copy.import_entries(name, entries))

    async def import_sequences(self, name: str, sequences: tuple[RememberedSequence, ...]) -> None:
        """Add copies to the window of a managed ledger that is being imported."""
        await self.database.write(lambda: store_copy.import_sequences(name, sequences))

    async def close(self) -> None:
        """Close every ledger; idempotent."""
        try:
            await self._watches.close()
            await self._entries.close()
        finally:
            await self.database.close()

    def _handle(self, managed: LedgerRef) -> SqlManagedLedger:
        return SqlManagedLedger(self.database, self._entries, self._watches, self._environment, self._options, managed)


def ledger_providers() -> list[Provider[StoreContext, ILedgerStore]]:
    """Return the providers ``sqlite`` and ``postgresql``."""
    return [
        Provider("sqlite", _open, SqlLedgerStore, options=for_sqlite(LedgerOptions), check_url=check_url),
        Provider("postgresql", _open, SqlLedgerStore, options=for_postgresql(LedgerOptions), check_url=check_url),
    ]


async def _open(context: StoreContext) -> ILedgerStore:
    options = with_defaults(context.options, LedgerOptions)
    return await open_ledger_store(context.url, context.environment, options, context.identity)


async def open_ledger_store(
    url: str,
    environment: Environment,
    options: LedgerOptions,
    identity: str | None,
    kind: Kind = SqliteConnection,
) -> SqlLedgerStore:
    """
    Open the ledgers of a database; create the database if it does not exist.

    :param identity: identity of the metadata store that the ledgers must belong to.
    :raises StoreMismatch: the ledgers belong to another metadata store.
    :raises InvalidInput: the URL names no usable database, or a database that was open when this process was forked.
    :raises UnknownFormat: the database was created or upgraded by a later release.
    :raises Unavailable: the database is locked or cannot be opened; nothing was changed.
    """
    database = await open_database(url, environment, options, kind)
    try:
        # Written once in the life of a database; later openings only compare it.
        found = await database.read(known_ledger_identity) or ""
        if not found or (identity is not None and found != identity):
            found = await database.write(lambda: ledger_identity(identity, database.shown_url))
    except BaseException:
        await database.close()
        raise
    return SqlLedgerStore(database, environment, options, found)
