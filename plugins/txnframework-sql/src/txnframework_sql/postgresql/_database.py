"""A PostgreSQL database: its opening, and what it does in its own way."""

from __future__ import annotations

from sqlalchemy import text

from txnframework.environment import Environment
from txnframework_sql._options import DatabaseOptions, LedgerOptions, MetadataOptions
from txnframework_sql._records import Records
from txnframework_sql._watch import Watches
from txnframework_sql.postgresql._entries import PostgresqlEntries
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.postgresql._functions import ensure_functions
from txnframework_sql.postgresql._listener import Listening
from txnframework_sql.postgresql._opened import open_connections
from txnframework_sql.postgresql._records import PostgresqlRecords
from txnframework_sql.postgresql._upgrade import ensure_current, stored_channel
from txnframework_sql.postgresql._url import locate
from txnframework_sql.steps.calls import Steps, row
from txnframework_sql.steps.leases import Clock

_NOW = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")


class PostgresqlDatabase(PostgresqlExecutor):
    """A database that stores were opened on."""

    @classmethod
    async def open(
        cls, url: str, environment: Environment, options: DatabaseOptions, new_identity: str
    ) -> PostgresqlDatabase:
        """Connect to a database; its tables are made, with ``new_identity``, if it is empty."""
        connections = open_connections.take(locate(url), environment, options, is_shared=options.share_connection)
        try:
            async with connections.lend() as connection:
                await ensure_current(connection, new_identity, connections.shown_url)
                await ensure_functions(connection, connections.shown_url)
                connections.notify_on(await stored_channel(connection, connections.shown_url))
        except BaseException:
            await open_connections.give_back(connections)
            raise
        return cls(connections, options)

    def records(self, options: MetadataOptions) -> Records:
        """Return the operations on records, each of which is one statement."""
        return PostgresqlRecords(self, options)

    def entries(self, options: LedgerOptions) -> PostgresqlEntries:
        """Return how entries are appended and read: by one statement each."""
        return PostgresqlEntries(self.connections, self, options, self.changed)

    def clock(self, _: Environment) -> Clock:
        """Return the database's clock: those who share it are on several machines."""
        return _clock

    def wake_ups(self, watches: Watches, _: Environment) -> Listening:
        """Return what is notified of the commits of others."""
        return Listening(self.connections.listener, watches)


def _clock() -> Steps[int]:
    found = yield from row(_NOW)
    assert found is not None
    return int(found[0])
