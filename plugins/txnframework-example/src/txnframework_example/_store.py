"""IMetadataStore on a notebook: one client, with a session and its leases."""

from __future__ import annotations

import asyncio

import msgspec
from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.errors import Closed, LeaseHeld
from txnframework.interfaces import IDurableStore, ILease, IWatch
from txnframework.model import (
    Applied,
    Delete,
    Expected,
    IndexRange,
    Key,
    KeyRange,
    Put,
    PutSequential,
    Reach,
    Record,
    RecordPage,
    Step,
    require_valid,
)
from txnframework.model.paths import lease_key, number20
from txnframework_example._format import Change
from txnframework_example._notebook import Notebook, NotebookWatch


class LeaseDocument(msgspec.Struct, kw_only=True):
    """The content of a lease's record."""

    format: int = 1
    holder: str
    session: str
    fencing: int

    def encoded(self) -> bytes:
        """Return the document as it is stored."""
        return msgspec.json.encode(self)


@implementer(ILease)
class NotebookLease:
    """A lease, held as long as its record has the version that acquiring the lease gave it."""

    def __init__(self, notebook: Notebook, record: Record, fencing: int) -> None:
        self.key = record.key
        self.version = record.version
        self.fencing = fencing
        self._notebook = notebook

    async def lost(self) -> None:
        """Return when the lease can no longer be relied on."""
        watch = NotebookWatch(self.key)
        self._notebook.watches.add(watch)
        try:
            while self._is_held():
                await watch.changed()
        finally:
            self._notebook.watches.discard(watch)

    async def release(self) -> None:
        """Release the lease now; may be repeated, also after the lease was lost."""
        if self._is_held():
            self._notebook.write(Change(self.key.path, self._notebook.next_number(), self.key.partition))

    def _is_held(self) -> bool:
        record = self._notebook.get(self.key)
        return record is not None and record.version == self.version


@implementer(IDurableStore)
class NotebookStore:
    """
    One client of a notebook.

    The store declares that it is durable, and no other capability. It is not shared, because only one process can open
    the file.
    """

    reach = Reach.PARTITION
    location: object = None

    def __init__(self, notebook: Notebook, environment: Environment) -> None:
        notebook.sessions += 1
        self.identity: str = notebook.head.identity
        self.session: str = f"{self.identity}-{environment.random_bits(64):016x}"
        self._notebook = notebook
        self._leases: list[NotebookLease] = []
        self._watches: set[NotebookWatch] = set()
        self._is_closed = False

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        await self._yield()
        return self._notebook.get(key)

    async def put(self, write: Put) -> int:
        """Write a record and its index entries in one line; return its new version."""
        return (await self.apply(Step(puts=(write,)))).records[0].version

    async def delete(self, key: Key, expected: Expected) -> None:
        """Remove a record and its index entries."""
        await self.apply(Step(deletes=(Delete(key, expected),)))

    async def apply(self, step: Step) -> Applied:
        """Make a step in one line."""
        require_valid(step, self.reach)
        await self._yield()
        for part in step.keyed():
            self._notebook.require(part.key, part.expected)
        written = [self._change(self._key_of(put), put) for put in step.puts]
        deleted = [self._removal(one.key) for one in step.deletes if self._notebook.get(one.key) is not None]
        if written or deleted:
            self._notebook.write(*written, *deleted)
        return Applied(tuple(change.record for change in written))

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        await self._yield()
        return self._notebook.scan(keys, items_max)

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        await self._yield()
        return self._notebook.scan_index(entries, items_max)

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch; it sees every change, because all clients of the file are in this process."""
        await self._yield()
        for one in [one for one in self._watches if one.is_closed]:
            self._watches.discard(one)
            self._notebook.watches.discard(one)
        watch = NotebookWatch(target)
        self._watches.add(watch)
        self._notebook.watches.add(watch)
        return watch

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        """
        Acquire the lease, or raise LeaseHeld.

        The same session and holder may acquire a lease that they already hold.
        """
        await self._yield()
        key = lease_key(name)
        record = self._notebook.get(key)
        if record is None:
            document = LeaseDocument(holder=holder, session=self.session, fencing=self._notebook.next_number())
            self._notebook.write(Change(key.path, self._notebook.next_number(), key.partition, document.encoded()))
            record = self._notebook.get(key)
            assert record is not None
        held = msgspec.json.decode(record.value, type=LeaseDocument)
        if (held.session, held.holder) != (self.session, holder):
            raise LeaseHeld(name, held.holder, key)
        lease = NotebookLease(self._notebook, record, held.fencing)
        self._leases.append(lease)
        return lease

    async def break_lease(self, name: str, version: int) -> None:
        """End another session's lease if its record still has this version."""
        await self._yield()
        record = self._notebook.get(lease_key(name))
        if record is not None and record.version == version:
            self._notebook.write(Change(record.key.path, self._notebook.next_number(), record.key.partition))

    async def close(self) -> None:
        """End the session: its leases are removed, and its watches raise Closed; may be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        for watch in self._watches:
            self._notebook.watches.discard(watch)
            watch.end()
        for lease in self._leases:
            await lease.release()
        self._notebook.sessions -= 1

    async def _yield(self) -> None:
        """
        Yield once to other tasks, as a store behind a network would.

        A call that is cancelled here changed nothing.
        """
        self._require_open()
        await asyncio.sleep(0)
        self._require_open()

    def _require_open(self) -> None:
        if self._is_closed:
            raise Closed(f"session {self.session} was closed")

    def _key_of(self, write: Put | PutSequential) -> Key:
        """Return the key of a write; a sequential one gets a new number."""
        if isinstance(write, Put):
            return write.key
        partition = write.prefix.partition or write.prefix.path
        while True:
            key = Key(f"{write.prefix.path}/{number20(self._notebook.next_number())}", partition)
            if self._notebook.get(key) is None:  # a put without a number may have used this key
                return key

    def _change(self, key: Key, write: Put | PutSequential) -> Change:
        indexes = tuple(sorted((one.index, one.key) for one in set(write.indexes)))
        return Change(key.path, self._notebook.next_number(), key.partition, bytes(write.value), indexes)

    def _removal(self, key: Key) -> Change:
        return Change(key.path, self._notebook.next_number(), key.partition)
