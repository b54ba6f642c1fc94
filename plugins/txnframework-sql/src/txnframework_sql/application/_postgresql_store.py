"""The tables of a store on PostgreSQL, as the application's connection reaches them."""

from __future__ import annotations

from txnframework.errors import InvalidInput
from txnframework.model import Key, Record
from txnframework_sql.application._connection import ApplicationConnection, lost, reason, sqlstate
from txnframework_sql.postgresql._connection import qualify, quote_schema
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.schema import NUMBERS
from txnframework_sql.steps.records import get_record

_INSUFFICIENT_PRIVILEGE, _READ_ONLY = "42501", "25006"


class JoinedStore:
    """The store whose record a transaction of the application writes."""

    def __init__(self, executor: PostgresqlExecutor) -> None:
        self.executor = executor

    async def record(self, key: Key) -> Record | None:
        """Return a record, read by the store's own connection."""
        return await self.executor.read_loosely(lambda: get_record(key))

    def qualified(self, text: str) -> str:
        """Return a statement with the store's schema."""
        return qualify(text, quote_schema(self.executor.pool.schema, self.executor.shown_url))

    def explained(self, connection: ApplicationConnection, error: Exception) -> Exception:
        """
        Return the error to raise for a statement that changed nothing; the driver's own if there is nothing to add.
        """
        code = sqlstate(error)
        if code == _INSUFFICIENT_PRIVILEGE:
            schema = quote_schema(self.executor.pool.schema, self.executor.shown_url)
            return InvalidInput(
                f"{connection.what} lacks rights on the tables of the metadata store ({reason(error)}); their owner"
                f" runs: GRANT USAGE ON SCHEMA {schema} TO the login; GRANT SELECT, INSERT, UPDATE, DELETE ON"
                f" {schema}.records, {schema}.index_entries TO the login; GRANT USAGE ON SEQUENCE {schema}.{NUMBERS}"
                " TO the login"
            )
        if code == _READ_ONLY:
            return read_only(connection, reason(error))
        if code is None:
            return lost(connection.what, reason(error))
        return error


def read_only(connection: ApplicationConnection, why: str) -> InvalidInput:
    """Return the error for a connection that cannot write."""
    return InvalidInput(
        f"{connection.what} is read-only or connected to a standby ({why}); pass one that may write to the primary"
    )
