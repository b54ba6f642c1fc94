"""The proof that a transaction of the application on PostgreSQL is one of the store's own database."""

from __future__ import annotations

from txnframework.environment import Environment
from txnframework.errors import InvalidInput, TxnFrameworkError, VersionMismatch
from txnframework.model import Key
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
from txnframework_sql.steps.records import decode_indexes
from txnframework_sql.steps.statements import partition_of

_SNAPSHOTS = frozenset({"repeatable read", "serializable"})
_SAVEPOINT = "txnframework_join"
# No path of a record. It also marks the transaction, and a mark that was rolled back is empty.
_NO_HEADER = Key("step")
_MS_BY_UNIT = {"": 1, "ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class PostgresqlJoins:
    """Joins transactions of applications in the database of a store."""

    def __init__(self, executor: PostgresqlExecutor, environment: Environment, pause_max_ms: int) -> None:
        self._store = JoinedStore(executor, Witness(executor.pool, environment), pause_max_ms)

    async def join(self, given: object, header: Key | None, version: int | None) -> PostgresqlTransaction:
        """
        Join the application's transaction, or raise an error that says why that cannot be done.

        Without a header, the step proves the connection, so a driver that knows its transaction needs no statement.
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
            proved: Joined | None = None
            if header is not None or not connection.notices_end:
                prove = self._prove if is_own else self._prove_in_savepoint
                proved = await prove(connection, header or _NO_HEADER, version)
            joined = PostgresqlTransaction(self._store, connection, proved)
            await connection.watch()
            return joined
        except BaseException:
            if is_own:
                await roll_back(connection)
            raise

    async def _prove_in_savepoint(self, connection: ApplicationConnection, header: Key, version: int | None) -> Joined:
        """As ``_prove``, in a transaction of the application that must stay usable after a refusal."""
        await self._tried(connection, f"SAVEPOINT {_SAVEPOINT}")
        try:
            joined = await self._prove(connection, header, version)
            await self._tried(connection, f"RELEASE {_SAVEPOINT}")
        except BaseException:
            await undo_savepoint(connection, _SAVEPOINT)
            raise
        return joined

    async def _prove(self, connection: ApplicationConnection, header: Key, version: int | None) -> Joined:
        """Return the joined transaction, which is proved to be one of the store's own database."""
        found = await self._look(connection, await self._store.witness.key(), header)
        is_free, is_read_only, isolation, idle, pid, began_us, actual, indexes, _ = found
        if is_free:
            # Perhaps the store has lost the connection that held the lock.
            is_free = (await self._look(connection, await self._store.witness.renew(), header))[0]
        if is_free:
            raise self._store.another(connection)
        if is_read_only:
            raise read_only(connection, "it allows no writes")
        if actual != version:
            if isolation in _SNAPSHOTS:
                raise InvalidInput(
                    f"{connection.what} has a {isolation} snapshot that is older than the transaction; begin the block"
                    " before the first statement"
                )
            raise VersionMismatch(header, actual)
        pause_ms = _shorter(self._store.pause_max_ms, idle)
        return Joined(pid, began_us, header, version or 0, decode_indexes(header, indexes), pause_ms)

    async def _look(self, connection: ApplicationConnection, key: int, header: Key) -> Row:
        rows = await self._tried(connection, self._store.qualified(JOIN), key, header.path, partition_of(header))
        return rows[0]

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


def _shorter(pause_max_ms: int, setting: str) -> int:
    """Return the shorter of the option and the connection's own setting, which PostgreSQL shows with a unit."""
    number = "".join(character for character in setting if character.isdigit())
    own_ms = int(number or 0) * _MS_BY_UNIT.get(setting[len(number) :], 1)
    return min(pause_max_ms, own_ms) if own_ms else pause_max_ms
