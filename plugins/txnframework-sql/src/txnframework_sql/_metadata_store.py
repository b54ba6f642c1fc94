"""The metadata store in a SQL database."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.interfaces import IAtomicBatchStore, IDurableStore, ILease, IRestorable, ISharedStore, IWatch
from txnframework.model import (
    Batch,
    Delete,
    Expected,
    IndexRange,
    Key,
    KeyRange,
    Put,
    PutSequential,
    Record,
    RecordPage,
)
from txnframework_sql import _records
from txnframework_sql._bridge import Bridge, Kind
from txnframework_sql._leases import LeaseSession
from txnframework_sql._options import MetadataOptions
from txnframework_sql._sqlite import SqliteDatabase, locate
from txnframework_sql._store_rows import identity, take_identity
from txnframework_sql._watch import Watches

_LEASES = "/lease/"
_BEHIND_LEASES = "/lease0"


@implementer(IAtomicBatchStore, ISharedStore, IDurableStore, IRestorable)
class SqlMetadataStore:
    """
    Records in a SQL database that several processes use at once.

    A confirmed write is on disk: it outlives the kill of every process and the loss of power. Watches of what this
    process writes wake at once; those of what others write, within ``poll_ms``.
    """

    def __init__(
        self, bridge: Bridge, environment: Environment, options: MetadataOptions, identity: str, session: str
    ) -> None:
        self.identity = identity
        self.session = session
        self.bridge = bridge
        self._watches = Watches(bridge, environment, options.poll_ms)
        self._leases = LeaseSession(bridge, environment, session, options.session_ttl_ms)

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        return await self.bridge.read(lambda database: _records.get_record(database, key))

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""
        return (await self.bridge.write(lambda database: _records.put_record(database, write))).version

    async def delete(self, key: Key, expected: Expected) -> None:
        """Remove a record and its index entries."""
        await self.bridge.write(lambda database: _records.delete_record(database, Delete(key, expected)))

    async def put_sequential(self, write: PutSequential) -> Key:
        """Write a record under the next number; return its key."""
        return (await self.bridge.write(lambda database: _records.put_next(database, write))).key

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        """Apply every step of the batch, or none."""
        _records.check_batch(batch)
        return await self.bridge.write(lambda database: _records.apply_batch(database, batch))

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        return await self.bridge.read(lambda database: _records.scan_records(database, keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self.bridge.read(lambda database: _records.scan_index_entries(database, entries, items_max))

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch."""
        self.bridge.require_open()
        if _holds_leases(target):
            self._leases.look_after_expired()
        return await self._watches.arm(target)

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        """Take the lease, or raise LeaseHeld; the session and holder that have it already get it again."""
        return await self._leases.acquire(name, holder)

    async def take_identity(self, identity: str) -> None:
        """Have another identity from now on."""
        await self.bridge.write(lambda database: take_identity(database, identity))
        self.identity = identity

    async def close(self) -> None:
        """End the session: its leases go, its watches raise Closed; may be repeated."""
        try:
            await self._watches.close()
            await self._leases.close()
        finally:
            await self.bridge.close()

    async def abandon(self) -> None:
        """Let go as a process does that is killed: the session stays in the database until it expires."""
        await self._watches.close()
        await self._leases.abandon()
        await self.bridge.close()


def _holds_leases(target: Key | KeyRange | IndexRange) -> bool:
    """Whether somebody who watches this may wait for the end of a lease."""
    if isinstance(target, Key):
        return target.path.startswith(_LEASES)
    return isinstance(target, KeyRange) and target.start < _BEHIND_LEASES and target.stop > _LEASES


async def open_metadata_store(
    url: str, environment: Environment, options: MetadataOptions, kind: Kind = SqliteDatabase
) -> SqlMetadataStore:
    """
    Open the records of a database, made if it is not there.

    :raises InvalidInput: the URL names no database that can be used, or one that was open when this process was forked.
    :raises UnknownFormat: a later release made or upgraded it.
    :raises Unavailable: it is locked, or cannot be opened; nothing was changed.
    """
    bridge = await Bridge.open(locate(url), options, f"sql-{environment.random_bits(64):016x}", kind)
    try:
        found = await bridge.read(identity)
    except BaseException:
        await bridge.close()
        raise
    return SqlMetadataStore(bridge, environment, options, found, f"session-{environment.random_bits(64):016x}")
