"""The proof that a transaction of the application on PostgreSQL is one of the store's own database."""

from __future__ import annotations

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.runtime.calling_thread import in_calling_thread
from txnframework_sql.application._connection import (
    ApplicationConnection,
    Row,
    in_savepoint,
    reason,
    roll_back,
    sqlstate,
    undo_savepoint,
)
from txnframework_sql.application._kinds import connection_of
from txnframework_sql.application._postgresql_statements import JOIN
from txnframework_sql.application._postgresql_store import FAILED_TRANSACTION, NOT_THERE, JoinedStore, failed, read_only
from txnframework_sql.application._postgresql_transaction import Joined, PostgresqlTransaction
from txnframework_sql.application._witness import Witness
from txnframework_sql.postgresql._executor import PostgresqlExecutor

_SAVEPOINT = "txnframework_join"


class PostgresqlJoins:
    """Joins transactions of applications in the database of a store."""

    def __init__(self, executor: PostgresqlExecutor, environment: Environment, pause_max_ms: int) -> None:
        self._store = JoinedStore(executor, Witness(executor.pool, environment), pause_max_ms)

    async def join(self, given: object) -> PostgresqlTransaction:
        """
        Join the application's transaction, or raise an error that says why that cannot be done.

        The step proves the connection, so a driver that notices the end of its transaction needs no statement.
        """
        connection = connection_of(given, in_calling_thread)
        try:
            is_own = await connection.begin()
        except TxnFrameworkError:
            raise
        except Exception as error:
            raise self._store.explained(connection, error) from error
        try:
            if connection.kind != "postgresql":
                raise self._store.another(connection)
            if await connection.has_savepoint():
                raise in_savepoint(connection)
            joined: Joined | None = None
            if not connection.notices_end:
                joined = await (self._prove if is_own else self._prove_in_savepoint)(connection)
            transaction = PostgresqlTransaction(self._store, connection, joined)
            await connection.watch()
            return transaction
        except BaseException:
            if is_own:
                await roll_back(connection)
            raise

    async def _prove_in_savepoint(self, connection: ApplicationConnection) -> Joined:
        """As ``_prove``, in a transaction of the application that must stay usable after a refusal."""
        await self._tried(connection, f"SAVEPOINT {_SAVEPOINT}")
        try:
            joined = await self._prove(connection)
            await self._tried(connection, f"RELEASE {_SAVEPOINT}")
        except BaseException:
            await undo_savepoint(connection, _SAVEPOINT)
            raise
        return joined

    async def _prove(self, connection: ApplicationConnection) -> Joined:
        """Return the joined transaction, which is proved to be one of the store's own database."""
        is_free, is_read_only, pid, began_us, _ = await self._look(connection, await self._store.witness.key())
        if is_free:
            # Perhaps the store has lost the connection that held the lock.
            is_free = (await self._look(connection, await self._store.witness.renew()))[0]
        if is_free:
            raise self._store.another(connection)
        if is_read_only:
            raise read_only(connection, "it allows no writes")
        return Joined(pid, began_us)

    async def _look(self, connection: ApplicationConnection, key: int) -> Row:
        return (await self._tried(connection, self._store.qualified(JOIN), key))[0]

    async def _tried(self, connection: ApplicationConnection, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement of the join; an error says what is wrong with the connection."""
        try:
            return await connection.execute(text, *arguments)
        except TxnFrameworkError:
            raise
        except Exception as error:
            code = sqlstate(error)
            if code in NOT_THERE:
                raise self._store.another(connection, reason(error)) from error
            if code == FAILED_TRANSACTION:
                raise failed(connection) from error
            raise self._store.explained(connection, error) from error
