"""Stores between a process and its real ones, in which a call can be refused, or applied and its reply lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from zope.interface import directlyProvides, implementer, providedBy

from txnframework.broker import ForwardingProxy
from txnframework.interfaces import (
    IAppendedWatch,
    ICoCommitStore,
    IDatabaseTransaction,
    ILease,
    ILedgerStore,
    IManagedLedger,
    IMetadataStore,
    IValueWatch,
    IWatch,
)
from txnframework.model import (
    Append,
    Appended,
    Applied,
    Branch,
    EntryRange,
    Expected,
    IndexRange,
    Key,
    KeyRange,
    LedgerEntry,
    LedgerSummary,
    Limit,
    MessageCount,
    Position,
    Put,
    Reach,
    Record,
    RecordPage,
    Step,
    Tail,
    WindowState,
    require_valid,
)
from txnframework_simulation.simulator.store_calls import StoreCalls


@implementer(IWatch)
class FaultyWatch(ForwardingProxy):
    """
    A watch whose wake-ups go through ``StoreCalls``.

    A wake-up that arrives after its wait was cancelled is delivered to the next wait.
    """

    def __init__(self, watch: IWatch, calls: StoreCalls) -> None:
        super().__init__(watch)
        self._watch = watch
        self._calls = calls
        self._owes = False

    async def changed(self) -> None:
        """Return once anything may have changed."""
        if not self._owes:
            await self._calls.woken(self._next)
        self._owes = False

    async def _next(self) -> None:
        """Return once the real watch has woken, and remember the wake-up until it is delivered."""
        await self._watch.changed()
        self._owes = True

    async def close(self) -> None:
        """Close the real watch."""
        await self._watch.close()


@implementer(IValueWatch)
class FaultyValueWatch(FaultyWatch):
    """A watch on a record whose wake-ups, and their values, go through ``StoreCalls``."""

    def __init__(self, watch: IValueWatch, calls: StoreCalls) -> None:
        super().__init__(watch, calls)
        self._telling = watch
        self.value: bytes | None = watch.value
        self._came: list[bytes | None] = []

    async def changed(self) -> None:
        """Return once the record may have changed; an extra wake-up keeps the last value."""
        await super().changed()
        came, self._came = self._came, []
        self.value = self._calls.value(came or (self.value,))

    async def _next(self) -> None:
        await super()._next()
        self._came.append(self._telling.value)


@implementer(IAppendedWatch)
class FaultyTailWatch(FaultyWatch):
    """A watch on a tail whose wake-ups go through ``StoreCalls``; a false wake-up reports no entries."""

    def __init__(self, watch: IAppendedWatch, calls: StoreCalls) -> None:
        super().__init__(watch, calls)
        self._telling = watch
        self.appended: tuple[LedgerEntry, ...] | None = None
        self._told: list[tuple[LedgerEntry, ...] | None] = []

    async def changed(self) -> None:
        """Return once the tail may have changed."""
        await super().changed()
        told, self._told = self._told, []
        self.appended = None if None in told else tuple(entry for some in told for entry in some or ())

    async def _next(self) -> None:
        await super()._next()
        self._told.append(self._telling.appended)


@implementer(ILease)
class FaultyLease(ForwardingProxy):
    """A lease whose release goes through ``StoreCalls``; a loss is reported immediately, as the interface requires."""

    def __init__(self, lease: ILease, calls: StoreCalls) -> None:
        super().__init__(lease)
        self.key: Key = lease.key
        self.version: int = lease.version
        self.fencing: int = lease.fencing
        self._lease = lease
        self._calls = calls

    async def lost(self) -> None:
        """Return when the lease can no longer be relied on."""
        await self._lease.lost()

    async def release(self) -> None:
        """Give it up now."""
        await self._calls.write("release", self.key, self._lease.release)


@implementer(IDatabaseTransaction)
class FaultyDatabaseTransaction(ForwardingProxy):
    """A joined transaction whose COMMIT goes through ``StoreCalls``."""

    def __init__(self, joined: IDatabaseTransaction, calls: StoreCalls) -> None:
        super().__init__(joined)
        self._joined = joined
        self._calls = calls

    async def commit(self) -> None:
        """Commit the transaction."""
        await self._calls.write("commit_joined", "the rows", self._joined.commit, self._leave)

    def _leave(self) -> Callable[[], Awaitable[object]]:
        """Lose the connection while the COMMIT is on its way; return what delivers it."""
        joined: Any = self._joined  # in memory, as all simulated stores
        deliver = joined.leave()

        async def deliver_late() -> None:
            deliver()

        return deliver_late


@implementer(IMetadataStore)
class FaultyMetadataStore(ForwardingProxy):
    """
    A metadata store whose calls go through ``StoreCalls``; it provides all interfaces of the real store.

    ``granted`` is called with each lease of the real store. Steps may be as wide as ``reach``.
    """

    def __init__(
        self,
        store: IMetadataStore,
        calls: StoreCalls,
        granted: Callable[[ILease], object] = lambda _: None,
        reach: Reach = Reach.DATABASE,
    ) -> None:
        super().__init__(store)
        self.reach = reach
        self.identity: str = store.identity
        self.session: str = store.session
        self._store = store
        self._calls = calls
        self._granted = granted
        directlyProvides(self, *providedBy(store).flattened())

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        return await self._calls.read("get", key, lambda: self._store.get(key))

    async def put(self, write: Put) -> int:
        """Write a record and its index entries."""
        return await self._calls.write("put", write, lambda: self._store.put(write))

    async def delete(self, key: Key, expected: Expected) -> None:
        """Remove a record and its index entries."""
        await self._calls.write("delete", key, lambda: self._store.delete(key, expected))

    async def apply(self, step: Step, transaction: IDatabaseTransaction | None = None) -> Applied:
        """
        Make a step.

        In a transaction of an application, a lost reply is a lost connection, so nothing is committed.
        """
        require_valid(step, self.reach)
        store = self._store
        if transaction is None:
            return await self._calls.write("apply", step, lambda: store.apply(step))
        assert ICoCommitStore.providedBy(store), "the caller has checked it"
        return await self._calls.read("apply with rows", step, lambda: store.apply(step, transaction))

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        return await self._calls.read("scan", keys, lambda: self._store.scan(keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self._calls.read("scan_index", entries, lambda: self._store.scan_index(entries, items_max))

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch."""
        watch = await self._calls.read("watch", target, lambda: self._store.watch(target))
        if IValueWatch.providedBy(watch):
            return FaultyValueWatch(watch, self._calls)
        return FaultyWatch(watch, self._calls)

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        """Take the lease, or raise LeaseHeld."""

        async def take() -> ILease:
            # Noted before the reply is sent: a lease is held even if the reply is lost.
            lease = await self._store.acquire_lease(name, holder)
            self._granted(lease)
            return lease

        return FaultyLease(await self._calls.write("acquire_lease", name, take), self._calls)

    async def break_lease(self, name: str, version: int) -> None:
        """End another session's lease."""
        await self._calls.write("break_lease", name, lambda: self._store.break_lease(name, version))

    async def join(self, connection: object) -> IDatabaseTransaction:
        """Join the transaction of an application's connection."""
        store = self._store
        assert ICoCommitStore.providedBy(store), "the caller has checked it"
        joined = await self._calls.read("join", "the rows", lambda: store.join(connection))
        return FaultyDatabaseTransaction(joined, self._calls)

    async def close(self) -> None:
        """End the session."""
        await self._store.close()


@implementer(IManagedLedger)
class FaultyLedger(ForwardingProxy):
    """A managed ledger whose calls go through ``StoreCalls``."""

    def __init__(self, ledger: IManagedLedger, calls: StoreCalls) -> None:
        super().__init__(ledger)
        self.name: str = ledger.name
        self._ledger = ledger
        self._calls = calls

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append entries in order to the ledger ``ledger_id`` only."""
        return await self._calls.write("append", self.name, lambda: self._ledger.append(entries, ledger_id))

    async def find_sequence(self, producer: str, sequence: int) -> Appended | None:
        """Return the stored entry of a sequence that counts, or None."""
        return await self._calls.read(
            "find_sequence", self.name, lambda: self._ledger.find_sequence(producer, sequence)
        )

    async def remembered(self, producer: str, sequence: int) -> WindowState:
        """Return the stored sequences of a producer."""
        return await self._calls.read("remembered", self.name, lambda: self._ledger.remembered(producer, sequence))

    async def tail(self) -> Tail:
        """Return a consistent view of the tail."""
        return await self._calls.read("tail", self.name, self._ledger.tail)

    async def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of a range."""
        return await self._calls.read("read", self.name, lambda: self._ledger.read(entries, limit))

    async def count(self, entries: EntryRange, messages_max: int) -> MessageCount:
        """Return the position up to which a range has ``messages_max`` messages."""
        return await self._calls.read("count", self.name, lambda: self._ledger.count(entries, messages_max))

    async def ledgers(self, after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """Return the first remaining ledgers after a ledger."""
        return await self._calls.read("ledgers", self.name, lambda: self._ledger.ledgers(after, items_max))

    async def find_time(self, published_ms: int) -> Position:
        """Return the position before the first entry of this time or later."""
        return await self._calls.read("find_time", self.name, lambda: self._ledger.find_time(published_ms))

    async def roll(self) -> Tail:
        """Close the open ledger and open the next."""
        return await self._calls.write("roll", self.name, self._ledger.roll)

    async def seal(self) -> Tail:
        """Refuse all further appends."""
        return await self._calls.write("seal", self.name, self._ledger.seal)

    async def trim(self, ledger_id: int, aborted: frozenset[Branch]) -> int:
        """Remove closed ledgers below ``ledger_id``."""
        return await self._calls.write("trim", self.name, lambda: self._ledger.trim(ledger_id, aborted))

    async def watch(self) -> IWatch:
        """Return an armed watch on the tail."""
        watch = await self._calls.read("watch", self.name, self._ledger.watch)
        if IAppendedWatch.providedBy(watch):
            return FaultyTailWatch(watch, self._calls)
        return FaultyWatch(watch, self._calls)

    async def close(self) -> None:
        """Let go."""
        await self._ledger.close()


@implementer(ILedgerStore)
class FaultyLedgerStore(ForwardingProxy):
    """A ledger store whose calls, and those of its ledgers, go through ``StoreCalls``."""

    def __init__(self, ledgers: ILedgerStore, calls: StoreCalls) -> None:
        super().__init__(ledgers)
        self.identity: str = ledgers.identity
        self._ledgers = ledgers
        self._calls = calls

    async def create(self, name: str) -> IManagedLedger:
        """Open a managed ledger; create an empty one if it does not exist."""
        return FaultyLedger(await self._calls.write("create", name, lambda: self._ledgers.create(name)), self._calls)

    async def open(self, name: str) -> IManagedLedger:
        """Open an existing managed ledger, or raise LedgerNotFound."""
        return FaultyLedger(await self._calls.read("open", name, lambda: self._ledgers.open(name)), self._calls)

    async def delete(self, name: str, upto_ledger_id: int | None) -> None:
        """Remove a managed ledger with its data."""
        await self._calls.write("delete", name, lambda: self._ledgers.delete(name, upto_ledger_id))

    async def list_names(self, prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        """Return the names with a prefix that follow ``after``, in order."""
        listed = self._ledgers.list_names
        return await self._calls.read("list_names", prefix, lambda: listed(prefix, after, items_max))

    async def highest_txn_numbers(self) -> dict[int, int]:
        """Return the highest transaction number ever appended, by coordinator."""
        return await self._calls.read("highest_txn_numbers", "", self._ledgers.highest_txn_numbers)

    async def close(self) -> None:
        """Close every ledger."""
        await self._ledgers.close()
