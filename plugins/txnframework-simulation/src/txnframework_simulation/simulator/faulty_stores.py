"""Stores between a process and its real ones, in which a call can be refused, or applied and its reply lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from zope.interface import implementer

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
from txnframework.model import Applied, IndexRange, Key, KeyRange, LedgerEntry, Reach, Step, require_valid
from txnframework_simulation.simulator.store_calls import StoreCalls


class CallForwarder(ForwardingProxy):
    """
    Forwards its ``reads`` and its ``writes`` through ``StoreCalls``, and everything else directly.

    A call is about its first argument, or about ``about`` if that is not empty.
    """

    reads: ClassVar[frozenset[str]] = frozenset()
    writes: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, behind: Any, calls: StoreCalls, about: str = "") -> None:
        super().__init__(behind)
        self._calls = calls
        self._about = about

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the object behind; of a method that is listed, one whose calls can fail."""
        found = super().__getattr__(name)
        if name not in self.reads | self.writes:
            return found
        make = self._calls.read if name in self.reads else self._calls.write

        async def call(*arguments: Any) -> Any:
            about = self._about or (arguments[0] if arguments else "")
            return await make(name, about, lambda: found(*arguments))

        vars(self)[name] = call  # found without this method from now on
        return call


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


class FaultyLease(CallForwarder):
    """A lease whose release goes through ``StoreCalls``; a loss is reported immediately, as the interface requires."""

    def __init__(self, lease: ILease, calls: StoreCalls) -> None:
        super().__init__(lease, calls)
        self.key: Key = lease.key

    async def release(self) -> None:
        """Release it now."""
        await self._calls.write("release", self.key, self._behind.release)


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


class FaultyMetadataStore(CallForwarder):
    """
    A metadata store whose calls go through ``StoreCalls``; it provides all interfaces of the real store.

    ``granted`` is called with each lease of the real store. Steps may be as wide as ``reach``.
    """

    reads = frozenset({"get", "scan", "scan_index"})
    writes = frozenset({"put", "delete", "break_lease"})

    def __init__(
        self,
        store: IMetadataStore,
        calls: StoreCalls,
        granted: Callable[[ILease], object] = lambda _: None,
        reach: Reach = Reach.DATABASE,
    ) -> None:
        super().__init__(store, calls)
        self.reach = reach
        self._store = store
        self._granted = granted

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

        return ILease(FaultyLease(await self._calls.write("acquire_lease", name, take), self._calls))

    async def join(self, connection: object) -> IDatabaseTransaction:
        """Join the transaction of an application's connection."""
        store = self._store
        assert ICoCommitStore.providedBy(store), "the caller has checked it"
        joined = await self._calls.read("join", "the rows", lambda: store.join(connection))
        return FaultyDatabaseTransaction(joined, self._calls)


class FaultyLedger(CallForwarder):
    """A managed ledger whose calls go through ``StoreCalls``."""

    reads = frozenset({"find_sequence", "remembered", "tail", "read", "count", "ledgers", "find_time"})
    writes = frozenset({"append", "roll", "seal", "trim"})

    def __init__(self, ledger: IManagedLedger, calls: StoreCalls) -> None:
        super().__init__(ledger, calls, ledger.name)

    async def watch(self) -> IWatch:
        """Return an armed watch on the tail."""
        watch = await self._calls.read("watch", self._about, self._behind.watch)
        if IAppendedWatch.providedBy(watch):
            return FaultyTailWatch(watch, self._calls)
        return FaultyWatch(watch, self._calls)


class FaultyLedgerStore(CallForwarder):
    """A ledger store whose calls, and those of its ledgers, go through ``StoreCalls``."""

    reads = frozenset({"list_names", "highest_txn_numbers"})
    writes = frozenset({"delete"})

    _behind: ILedgerStore

    async def create(self, name: str) -> IManagedLedger:
        """Open a managed ledger; create an empty one if it does not exist."""
        ledger = await self._calls.write("create", name, lambda: self._behind.create(name))
        return IManagedLedger(FaultyLedger(ledger, self._calls))

    async def open(self, name: str) -> IManagedLedger:
        """Open an existing managed ledger, or raise LedgerNotFound."""
        ledger = await self._calls.read("open", name, lambda: self._behind.open(name))
        return IManagedLedger(FaultyLedger(ledger, self._calls))
