"""The ledger store in a SQL database."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.interfaces import ILedgerStore, IManagedLedger, IRestorable
from txnframework_sql._database import Database
from txnframework_sql._ledger import SqlManagedLedger
from txnframework_sql._opening import Kind, open_database
from txnframework_sql._options import LedgerOptions
from txnframework_sql._watch import Watches
from txnframework_sql.sqlite import SqliteDatabase
from txnframework_sql.steps import ledgers, trimming
from txnframework_sql.steps.identities import known_ledger_identity, ledger_identity, take_ledger_identity
from txnframework_sql.steps.ledgers import Managed


@implementer(ILedgerStore, IRestorable)
class SqlLedgerStore:
    """Managed ledgers in a SQL database that several processes use at once; confirmed writes are on disk."""

    def __init__(self, database: Database, environment: Environment, options: LedgerOptions, identity: str) -> None:
        self.identity = identity
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
        while await self.database.write(trimming.remove_deleted):
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

    async def close(self) -> None:
        """Close every ledger; idempotent."""
        try:
            await self._watches.close()
            await self._entries.close()
        finally:
            await self.database.close()

    def _handle(self, managed: Managed) -> SqlManagedLedger:
        return SqlManagedLedger(self.database, self._entries, self._watches, self._environment, self._options, managed)


async def open_ledger_store(
    url: str,
    environment: Environment,
    options: LedgerOptions,
    identity: str | None,
    kind: Kind = SqliteDatabase,
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
