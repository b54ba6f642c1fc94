"""One client's access to a server's records, and the leases of its session."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from zope.interface import implementer

from txnframework.errors import LeaseHeld
from txnframework.interfaces import (
    ICoCommitStore,
    ICopyableMetadataStore,
    IDatabaseTransaction,
    ILease,
    INotifyingStore,
    IRestorable,
    IWatch,
)
from txnframework.model import (
    Applied,
    Delete,
    Expect,
    Expected,
    IndexedPage,
    IndexPage,
    IndexRange,
    Key,
    KeyRange,
    Put,
    Reach,
    Record,
    RecordPage,
    Step,
    require_decided,
    require_valid,
)
from txnframework.model.paths import lease_key
from txnframework_memory._co_commit import join
from txnframework_memory._database import MemoryConnection
from txnframework_memory._link import Link, Pause, RecordWatch, Watch
from txnframework_memory._records import Change, IndexWatch, Records, concerned_by, record_id
from txnframework_memory._remembered import Remembered
from txnframework_memory._server import Server
from txnframework_memory._steps import apply_step, foresee_step, require_located


class LeaseDocument(msgspec.Struct, kw_only=True):
    """The content of a lease's record."""

    format: int = 1
    holder: str
    session: str
    fencing: int


@implementer(ILease)
class MemoryLease:
    """A lease held by one session, as long as its record has the version that acquiring the lease gave it."""

    def __init__(self, records: Records, link: Link, record: Record, fencing: int) -> None:
        self.key = record.key
        self.version = record.version
        self.fencing = fencing
        self._records = records
        self._link = link

    async def lost(self) -> None:
        """Return when the lease can no longer be relied on; see ILease."""
        # This watch does not go through the link, so that the end of the lease is never reported late.
        watch = self._records.watches.add(RecordWatch(self._records.watches, record_id(self.key)))
        try:
            while self._is_held():
                await watch.changed()
        finally:
            watch.end()

    async def release(self) -> None:
        """Release the lease now; may be repeated."""
        if self._is_held():
            await self._link.write(self._remove)

    def _is_held(self) -> bool:
        record = self._records.get(self.key)
        return record is not None and record.version == self.version

    def _remove(self) -> None:
        if self._is_held():
            self._records.apply(Step(deletes=(Delete(self.key, self.version),)))


@implementer(ICoCommitStore, ICopyableMetadataStore, INotifyingStore, IRestorable)
class MemoryMetadataStore:
    """One client of the records of a ``Server``; its session ends with ``close``, or with ``crash``."""

    def __init__(self, server: Server, session: str, pause: Pause) -> None:
        self.identity = server.identity
        self.session = session
        self.link = Link(f"session {session} of {server.identity}", pause)
        self._server = server
        self._records = server.records
        self.reach = Reach.DATABASE
        self.location: object = server
        # In the order of arming, so that a run can be repeated exactly.
        self._connections: list[MemoryConnection] = []
        self._watches: Remembered[Watch[Change]] = Remembered(lambda watch: not watch.is_closed)

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        return await self.link.read(lambda: self._records.get(key))

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""
        return (await self._write(Step(puts=(write,)))).records[0].version

    async def delete(self, key: Key, expected: Expected) -> None:
        """Remove a record and its index entries."""
        await self._write(Step(deletes=(Delete(key, expected),)))

    async def apply(self, step: Step, transaction: IDatabaseTransaction | None = None) -> Applied:
        """Make a step, perhaps as the last part of the application's transaction."""
        require_valid(step, self.reach)
        require_located(step, self._server.rows)
        if transaction is None:
            return await self._write(step)
        require_decided(step)
        self.link.require_open()
        joined: Any = transaction  # perhaps behind a proxy
        applied: Applied = await joined.step(
            step, partial(foresee_step, self._records, step), partial(apply_step, self._records, step)
        )
        return applied

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        return await self.link.read(lambda: self._records.scan(keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self.link.read(lambda: self._records.scan_index(entries, items_max))

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch."""
        return await self.link.read(lambda: self._arm(target))

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        """
        Acquire the lease, or raise LeaseHeld.

        The same session and holder may acquire a lease that they already hold.
        """
        return await self.link.write(lambda: self._take(name, holder))

    async def break_lease(self, name: str, version: int) -> None:
        """End another session's lease if its record still has this version."""
        await self.link.write(lambda: self._break(lease_key(name), version))

    async def take_identity(self, identity: str) -> None:
        """Use another identity from now on."""
        await self.link.write(lambda: self._server.take_identity(identity))
        self.identity = identity

    async def scan_indexed(self, keys: KeyRange, items_max: int) -> IndexedPage:
        """Return a page of records with their index entries."""
        return await self.link.read(lambda: self._records.scan_indexed(keys, items_max))

    async def scan_entries(self, entries: IndexRange, items_max: int) -> IndexPage:
        """Return a page of an index."""
        return await self.link.read(lambda: self._records.scan_entries(entries, items_max))

    async def last_number(self) -> int:
        """Return the last number that was given."""
        return await self.link.read(lambda: self._records.last_number)

    async def skip_numbers(self, number: int) -> None:
        """Give no number up to ``number``."""
        await self.link.write(lambda: self._records.skip_numbers(number))

    # Writers of different records do not wait for each other.
    has_one_writer = False

    async def join(self, connection: object) -> IDatabaseTransaction:
        """Join the open transaction of a ``MemoryConnection`` to the same space."""
        self.link.require_open()
        return await join(self._server.database, connection)

    def connect(self) -> MemoryConnection:
        """Return a new connection of the application to its tables; it is lost when this client is closed."""
        connection = self._server.database.connect(self.link.pause)
        self._connections = [one for one in self._connections if not one.link.is_closed] + [connection]
        return connection

    async def close(self) -> None:
        """End the session; may be repeated."""
        self.crash()

    def crash(self) -> None:
        """
        End the session immediately, as a kill of its process does.

        Running calls do not receive their outcome.
        """
        if self.link.is_closed:
            return
        self.link.close()
        for watch in self._watches:
            watch.end()
        for connection in self._connections:
            connection.crash()
        self.end_session()

    def lose(self) -> None:
        """Lose the process: its connections end, and its leases; calls on their way may still arrive."""
        for connection in self._connections:
            connection.crash()
        self.end_session()

    def end_session(self) -> None:
        """Remove the leases of the session, as a server does with a client that is silent for too long."""
        self._server.end_session(self.session)

    def cut(self) -> None:
        """Lose the next reply, then lose the connection; the session continues, and its watches receive nothing."""
        self.link.cut()

    def restore(self) -> None:
        """Restore the connection; every watch wakes, since it may have missed changes."""
        self.link.restore()
        for watch in self._watches:
            watch.wake()

    async def _write(self, step: Step) -> Applied:
        """Make a step, after the end of the application's transactions that have written one of its records."""
        return await self.link.write(
            partial(apply_step, self._records, step), partial(self._server.locks.of_step, step)
        )

    def _arm(self, target: Key | KeyRange | IndexRange) -> Watch[Change]:
        armed = self._records.watches
        watch: Watch[Change]
        if isinstance(target, Key):
            watch = RecordWatch(armed, record_id(target), self.link)
        elif isinstance(target, IndexRange):
            watch = IndexWatch(armed, target, self.link)
        else:
            watch = Watch(armed, partial(concerned_by, target), self.link)
        armed.add(watch)
        self._watches.add(watch)
        return watch

    def _break(self, key: Key, version: int) -> None:
        record = self._records.get(key)
        if record is not None and record.version == version:
            self._records.apply(Step(deletes=(Delete(key, version),)))

    def _take(self, name: str, holder: str) -> MemoryLease:
        key = lease_key(name)
        record = self._records.get(key)
        if record is None:
            fencing = self._server.next_fencing()
            document = LeaseDocument(holder=holder, session=self.session, fencing=fencing)
            put = Put(key, msgspec.json.encode(document), Expect.ABSENT)
            (record,) = self._records.apply(Step(puts=(put,)))
            self._server.remember_lease(self.session, record)
        held = msgspec.json.decode(record.value, type=LeaseDocument)
        if (held.session, held.holder) != (self.session, holder):
            raise LeaseHeld(name, held.holder, key)
        return MemoryLease(self._records, self.link, record, held.fencing)
