"""The metadata store in a SQL database."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.errors import InvalidInput
from txnframework.interfaces import (
    ICoCommitStore,
    ICopyableMetadataStore,
    IDatabaseTransaction,
    IDiagnosable,
    IDurableStore,
    ILease,
    IMetadataStore,
    INotifyingStore,
    IRestorable,
    ISharedStore,
    IWatch,
)
from txnframework.model import (
    Applied,
    Delete,
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
from txnframework.model.diagnoses import Diagnosis
from txnframework.plugin import Provider, StoreContext
from txnframework_sql._backends import check_url, is_postgresql, open_database
from txnframework_sql._database import Database, Entries
from txnframework_sql._options import (
    MetadataOptions,
    for_postgresql,
    for_sqlite,
    ledger_options_of,
    with_defaults,
)
from txnframework_sql._watch import Watches
from txnframework_sql.sqlite import Kind, SqliteConnection
from txnframework_sql.steps.identities import identity, take_identity
from txnframework_sql.steps.leases import Clock, end_lease
from txnframework_sql.steps.ledger_references import operations_of, require_located
from txnframework_sql.steps.records import scan_indexed
from txnframework_sql.steps.statements import new_number, skip_numbers
from txnframework_sql.steps.store_copy import scan_lines

_LEASES = "/lease/"
_NUMBER_MAX = 2**62
_AFTER_LEASES = "/lease0"


@implementer(ICoCommitStore, ICopyableMetadataStore, IDiagnosable, ISharedStore, IDurableStore, IRestorable)
class SqlMetadataStore:
    """
    Records in a SQL database that several processes use at the same time.

    A confirmed write is on disk: it survives the kill of every process and a power failure. Writes of this process wake
    its watches immediately. In SQLite, writes of other processes wake them within ``poll_ms``.
    """

    def __init__(
        self,
        database: Database,
        environment: Environment,
        options: MetadataOptions,
        identity: str,
        clock: Clock | None = None,
    ) -> None:
        self.identity = identity
        self.session = f"session-{environment.random_bits(64):016x}"
        self.database = database
        self.reach = Reach.DATABASE
        self.location: object = database.location
        self._environment = environment
        self._watches = Watches(database, lambda watches: database.wake_ups(watches, environment))
        self._records = database.records(options)
        # For steps without appends; those of a ledger bring their own.
        self._entries = database.entries(ledger_options_of(options))
        self._joins = database.joins(environment, options)
        self._leases = database.lease_session(
            environment, self.session, options.session_ttl_ms, clock or database.clock(environment)
        )

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        return await self._records.get(key)

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""
        return await self._records.put(write)

    async def delete(self, key: Key, expected: Expected) -> None:
        """Delete a record and its index entries."""
        await self._records.delete(Delete(key, expected))

    async def apply(self, step: Step, transaction: IDatabaseTransaction | None = None) -> Applied:
        """Make a step, perhaps as the last part of the application's transaction."""
        self.database.require_open()
        require_valid(step, self.reach)
        require_located(step, self.location)
        if transaction is not None:
            require_decided(step)
        if transaction is None and step.is_of_records:
            return Applied(await self._records.apply(step))
        entries: Entries = operations_of(step.appends[0].ledger) if step.appends else self._entries
        return await entries.apply(step, self._environment.now_ms(), transaction)

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        return await self._records.scan(keys, items_max)

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self._records.scan_index(entries, items_max)

    async def watch(self, target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch."""
        self.database.require_open()
        if _holds_leases(target):
            self._leases.start_expiry()
        return await self._watches.arm(target)

    async def acquire_lease(self, name: str, holder: str) -> ILease:
        """Acquire the lease, or raise LeaseHeld; a session and holder that already hold it acquire it again."""
        return await self._leases.acquire(name, holder)

    async def break_lease(self, name: str, version: int) -> None:
        """End another session's lease if its record still has this version; the version is also its fencing number."""
        await self.database.write(lambda: end_lease(name, version))

    async def scan_indexed(self, keys: KeyRange, items_max: int) -> IndexedPage:
        """Return a page of records with their index entries."""
        return await self.database.read(lambda: scan_indexed(keys, items_max))

    async def scan_entries(self, entries: IndexRange, items_max: int) -> IndexPage:
        """Return a page of an index."""
        return await self.database.read(lambda: scan_lines(entries, items_max))

    async def last_number(self) -> int:
        """Return a number above all that were given; no record gets it."""
        return await self.database.write(new_number)

    async def skip_numbers(self, number: int) -> None:
        """Give no number up to ``number``."""
        if number > _NUMBER_MAX:
            raise InvalidInput(f"{self.database.shown_url} cannot count beyond {_NUMBER_MAX}, and {number} is higher")
        await self.database.write(lambda: skip_numbers(number))

    @property
    def has_one_writer(self) -> bool:
        """Whether a row that the application has written keeps the store from writing."""
        return self.database.has_one_writer

    async def join(self, connection: object) -> IDatabaseTransaction:
        """Join the open transaction of the application's connection for one step; begin one if none is open."""
        self.database.require_open()
        return await self._joins.join(connection)

    async def diagnose(self, age_ms_min: int) -> tuple[Diagnosis, ...]:
        """Return what makes the database slow."""
        self.database.require_open()
        return await self.database.diagnose(age_ms_min)

    async def take_identity(self, identity: str) -> None:
        """Replace the identity of the store."""
        await self.database.write(lambda: take_identity(identity))
        self.identity = identity

    async def close(self) -> None:
        """End the session: its leases end, its watches raise Closed; idempotent."""
        try:
            await self._watches.close()
            await self._leases.close()
            await self._records.close()
            await self._entries.close()
        finally:
            await self.database.close()

    async def abandon(self) -> None:
        """Close like a killed process: the session stays in the database until it expires."""
        await self._watches.close()
        await self._leases.abandon()
        await self.database.close()


@implementer(INotifyingStore)
class PostgresqlMetadataStore(SqlMetadataStore):
    """Records in a PostgreSQL database, which notifies all listeners of every commit."""


def _holds_leases(target: Key | KeyRange | IndexRange) -> bool:
    """Return whether a watcher of this target may be waiting for the end of a lease."""
    if isinstance(target, Key):
        return target.path.startswith(_LEASES)
    return isinstance(target, KeyRange) and target.start < _AFTER_LEASES and target.stop > _LEASES


def metadata_providers() -> list[Provider[StoreContext, IMetadataStore]]:
    """Return the providers ``sqlite`` and ``postgresql``."""
    return [
        Provider("sqlite", _open, SqlMetadataStore, options=for_sqlite(MetadataOptions), check_url=check_url),
        Provider(
            "postgresql", _open, PostgresqlMetadataStore, options=for_postgresql(MetadataOptions), check_url=check_url
        ),
    ]


async def _open(context: StoreContext) -> IMetadataStore:
    options = with_defaults(context.options, MetadataOptions)
    return await open_metadata_store(context.url, context.environment, options)


async def open_metadata_store(
    url: str,
    environment: Environment,
    options: MetadataOptions,
    kind: Kind = SqliteConnection,
    clock: Clock | None = None,
) -> SqlMetadataStore:
    """
    Open the records of a database; create the database if it does not exist.

    :param clock: decides when leases expire; only for tests with simulated time. By default the database or its machine
        decides.
    :raises InvalidInput: the URL names no usable database, a database that was open when this process was forked, or
        one with the schema of an earlier release.
    :raises UnknownFormat: the database was created or upgraded by a later release.
    :raises Unavailable: the database is locked or cannot be opened; nothing was changed.
    """
    database = await open_database(url, environment, options, kind)
    try:
        found = await database.read(identity)
    except BaseException:
        await database.close()
        raise
    store = PostgresqlMetadataStore if is_postgresql(url) else SqlMetadataStore
    return store(database, environment, options, found, clock)
