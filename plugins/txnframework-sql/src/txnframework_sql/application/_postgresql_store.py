"""The tables of a store on PostgreSQL, as the application's connection reaches them."""

from __future__ import annotations

from txnframework.errors import InvalidInput
from txnframework.model import Key
from txnframework_sql.application._connection import ApplicationConnection, lost, reason, sqlstate
from txnframework_sql.application._witness import Witness
from txnframework_sql.postgresql._connection import qualify, quote_schema
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.steps.records import get_record

NOT_THERE = frozenset({"3F000", "42P01", "42703", "42883"})
"""The codes for a schema, a table, a column or a function that the database does not have."""

FAILED_TRANSACTION = "25P02"
"""The code for a statement in a transaction that can only be rolled back."""

_INSUFFICIENT_PRIVILEGE, _READ_ONLY = "42501", "25006"


class JoinedStore:
    """
    The store in whose database a transaction of the application makes a step.

    :param pause_max_ms: how long the server lets such a transaction wait for its COMMIT.
    """

    def __init__(self, executor: PostgresqlExecutor, witness: Witness, pause_max_ms: int) -> None:
        self.executor = executor
        self.witness = witness
        self.pause_max_ms = pause_max_ms

    async def version(self, key: Key) -> int | None:
        """Return the version of a record, read by the store's own connection."""
        record = await self.executor.read_loosely(lambda: get_record(key))
        return None if record is None else record.version

    def qualified(self, text: str) -> str:
        """Return a statement with the store's schema."""
        return qualify(text, quote_schema(self.executor.pool.schema, self.executor.shown_url))

    def another(self, connection: ApplicationConnection, why: str = "") -> InvalidInput:
        """Return the error for a connection to another database."""
        shown = f" ({why})" if why else ""
        return InvalidInput(
            f"{connection.what} is not connected to the database of the metadata store, {self.executor.shown_url}; one"
            f" COMMIT can decide only what is in one database{shown}"
        )

    def explained(self, connection: ApplicationConnection, error: Exception) -> Exception:
        """
        Return the error to raise for a statement that changed nothing; the driver's own if there is nothing to add.
        """
        code = sqlstate(error)
        if code == _INSUFFICIENT_PRIVILEGE:
            return InvalidInput(
                f"{connection.what} lacks rights on the tables of the metadata store ({reason(error)}); their owner"
                " runs the statements that 'txnframework sql grants LOGIN --commits-only' prints"
            )
        if code == _READ_ONLY:
            return read_only(connection, reason(error))
        if code is None:
            return lost(connection.what, reason(error))
        return error


def failed(connection: ApplicationConnection) -> InvalidInput:
    """Return the error for a transaction that can only be rolled back."""
    return InvalidInput(
        f"a statement in the transaction of {connection.what} failed before; roll it back before the block"
    )


def read_only(connection: ApplicationConnection, why: str) -> InvalidInput:
    """Return the error for a connection that cannot write."""
    return InvalidInput(
        f"{connection.what} is read-only or connected to a standby ({why}); pass one that may write to the primary"
    )
