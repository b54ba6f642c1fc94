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
from txnframework_sql._executor import Executor
from txnframework_sql._leases import LeaseSession
from txnframework_sql._options import MetadataOptions
from txnframework_sql._watch import Watches
from txnframework_sql.sqlite._bridge import Kind, SqliteBridge
from txnframework_sql.sqlite._database import SqliteDatabase, locate
from txnframework_sql.steps import records
from txnframework_sql.steps.identities import identity, take_identity

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
        self, executor: Executor, environment: Environment, options: MetadataOptions, identity: str, session: str
    ) -> None:
        self.identity = identity
        self.session = session
        self.executor = executor
        self._watches = Watches(executor, environment)
        self._leases = LeaseSession(executor, environment, session, options.session_ttl_ms)

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        return await self.executor.read(lambda: records.get_record(key))

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""
        return (await self.executor.write(lambda: records.put_record(write))).version

    async def delete(self, key: Key, expected: Expected) -> None:
        """Remove a record and its index entries."""
        await self.executor.write(lambda: records.delete_record(Delete(key, expected)))

    async def put_sequential(self, write: PutSequential) -> Key:
        """Write a record under the next number; return its key."""
        return (await self.executor.write(lambda: records.put_next(write))).key

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        """Apply every step of the batch, or none."""
        records.check_batch(batch)
        return await self.executor.write(lambda: records.apply_batch(batch))

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        return await self.executor.read(lambda: records.scan_records(keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self.executor.read(lambda: records.scan_index_entries(entries, items_max))

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch."""
        self.executor.require_open()
        if _holds_leases(target):
            self._leases.look_after_expired()
        return await self._watches.arm(target)

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        """Take the lease, or raise LeaseHeld; the session and holder that have it already get it again."""
        return await self._leases.acquire(name, holder)

    async def take_identity(self, identity: str) -> None:
        """Have another identity from now on."""
        await self.executor.write(lambda: take_identity(identity))
        self.identity = identity

    async def close(self) -> None:
        """End the session: its leases go, its watches raise Closed; may be repeated."""
        try:
            await self._watches.close()
            await self._leases.close()
        finally:
            await self.executor.close()

    async def abandon(self) -> None:
        """Let go as a process does that is killed: the session stays in the database until it expires."""
        await self._watches.close()
        await self._leases.abandon()
        await self.executor.close()


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
    executor = await SqliteBridge.open(locate(url), options, f"sql-{environment.random_bits(64):016x}", kind)
    try:
        found = await executor.read(identity)
    except BaseException:
        await executor.close()
        raise
    return SqlMetadataStore(executor, environment, options, found, f"session-{environment.random_bits(64):016x}")
