"""A transaction of the application on PostgreSQL that a header's put joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.errors import InvalidInput, TxnFrameworkError, VersionMismatch
from txnframework.interfaces import IDatabaseTransaction
from txnframework.model import IndexEntry, Key, Put, Record
from txnframework.runtime.calling_thread import in_calling_thread
from txnframework_sql.application._connection import (
    ApplicationConnection,
    Row,
    commit,
    ended,
    in_savepoint,
    lost,
    reason,
    require_joined,
    roll_back,
    sqlstate,
    undo_savepoint,
    undone,
)
from txnframework_sql.application._kinds import connection_of
from txnframework_sql.application._witness import Witness
from txnframework_sql.postgresql._connection import SCHEMA, qualify, quote_schema
from txnframework_sql.postgresql._executor import PostgresqlExecutor, prepare
from txnframework_sql.postgresql._payloads import payloads
from txnframework_sql.schema import NUMBERS
from txnframework_sql.steps.record_writes import put_record
from txnframework_sql.steps.records import decode_indexes, encode_indexes, get_record
from txnframework_sql.steps.statements import Change, NewNumber, RecordChange, Rows, Steps, Write, partition_of

T = TypeVar("T")

_INSUFFICIENT_PRIVILEGE, _FAILED_TRANSACTION, _READ_ONLY, _SERIALIZATION_FAILURE = "42501", "25P02", "25006", "40001"
_NOT_THERE = frozenset({"3F000", "42P01", "42703"})
_SNAPSHOTS = frozenset({"repeatable read", "serializable"})
_SAVEPOINT = "txnframework_join"

# Every name has its schema, because the search path is the application's. A transaction is identified by its server
# process and the time of its beginning. An id would have to be assigned, also to a transaction that writes nothing.
_BEGAN = "(EXTRACT(epoch FROM pg_catalog.now()) * 1000000)::bigint"
_JOIN = f"""
SELECT pg_catalog.pg_try_advisory_xact_lock_shared($1::bigint),
    pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only') = 'on',
    pg_catalog.current_setting('transaction_isolation'),
    pg_catalog.current_setting('idle_in_transaction_session_timeout'),
    pg_catalog.pg_backend_pid()::bigint, {_BEGAN},
    r.version, r.indexes, pg_catalog.set_config('txnframework.joined', $2::text, true)
FROM (SELECT 1) AS one LEFT JOIN {SCHEMA}.records r ON r.path = $2::text AND r.partition = $3::text
"""  # noqa: S608 - a name of our own
_IS_JOINED = f"pg_catalog.pg_backend_pid() = $1::bigint AND {_BEGAN} = $2::bigint"
# The join sets this for the transaction. A ROLLBACK TO an older savepoint resets it.
_IS_KEPT = "pg_catalog.current_setting('txnframework.joined', true) IS NOT DISTINCT FROM $4::text"
# A process that stops before its COMMIT must not hold the record's lock, and a confirmed commit must be on disk.
_BOUND = """pg_catalog.set_config('idle_in_transaction_session_timeout', $3::text, true),
    CASE WHEN pg_catalog.current_setting('synchronous_commit') = 'off'
        THEN pg_catalog.set_config('synchronous_commit', 'on', true) END"""
# A row written in a savepoint has the savepoint's own transaction id.
_REPLACE = f"""
WITH joined AS (
    SELECT {_IS_JOINED} AS is_same, {_IS_KEPT} AS is_kept
), written AS (
    UPDATE {SCHEMA}.records r
    SET version = pg_catalog.nextval('{SCHEMA}.{NUMBERS}'), indexes = $7::text, value = $6::bytea
    WHERE r.path = $4::text AND r.partition = $5::text AND r.version = $8::bigint
        AND r.indexes IS NOT DISTINCT FROM $9::text AND (SELECT is_same AND is_kept FROM joined)
    RETURNING r.version, r.xmin AS writer
), removed AS (
    DELETE FROM {SCHEMA}.index_entries e
    USING written, ROWS FROM (pg_catalog.unnest($10::text[]), pg_catalog.unnest($11::bytea[])) AS removed (name, key)
    WHERE e.index_name = removed.name AND e.key = removed.key AND e.path = $4::text AND e.partition = $5::text
), added AS (
    INSERT INTO {SCHEMA}.index_entries (index_name, key, path, partition)
    SELECT added.name, added.key, $4::text, $5::text
    FROM written, ROWS FROM (pg_catalog.unnest($12::text[]), pg_catalog.unnest($13::bytea[])) AS added (name, key)
)
SELECT joined.is_same, joined.is_kept, done.version, done.is_outermost
FROM joined LEFT JOIN LATERAL (
    SELECT version, writer = pg_catalog.pg_current_xact_id()::xid AS is_outermost,
        pg_catalog.pg_notify($14::text, $15::text), {_BOUND}
    FROM written
) done ON true
"""  # noqa: S608 - names of our own
_BIND = f"SELECT {_IS_JOINED}, {_IS_KEPT}, {_BOUND}"
_IS_OUTERMOST = f"""
SELECT r.xmin = pg_catalog.pg_current_xact_id()::xid FROM {SCHEMA}.records r
WHERE r.path = $1::text AND r.partition = $2::text
"""  # noqa: S608 - a name of our own
_NOTIFY = "SELECT pg_catalog.pg_notify($1::text, payload) FROM pg_catalog.unnest($2::text[]) payload"
_NEW_NUMBER = f"SELECT pg_catalog.nextval('{SCHEMA}.{NUMBERS}')"

_MS_BY_UNIT = {"": 1, "ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class PostgresqlJoins:
    """Joins transactions of applications in the database of a store."""

    def __init__(self, executor: PostgresqlExecutor, environment: Environment, pause_max_ms: int) -> None:
        self.executor = executor
        self._witness = Witness(executor.pool, environment)
        self._pause_max_ms = pause_max_ms

    async def join(self, given: object, header: Key, version: int) -> PostgresqlTransaction:
        """Join the application's transaction, or raise an error that says why that cannot be done."""
        connection = connection_of(given, in_calling_thread)
        try:
            is_own = await connection.begin()
        except TxnFrameworkError:
            raise
        except Exception as error:
            raise self.explained(connection, error) from error
        try:
            if connection.kind != "postgresql":
                raise self._another(connection)
            if await connection.has_savepoint():
                raise in_savepoint(connection)
            prove = self._prove if is_own else self._prove_in_savepoint
            joined = PostgresqlTransaction(self, connection, await prove(connection, header, version))
            await connection.watch()
            return joined
        except BaseException:
            if is_own:
                await roll_back(connection)
            raise

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
            return _read_only(connection, reason(error))
        if code is None:
            return lost(connection.what, reason(error))
        return error

    async def _prove_in_savepoint(self, connection: ApplicationConnection, header: Key, version: int) -> _Joined:
        """As ``_prove``, in a transaction of the application that must stay usable after a refusal."""
        await self._tried(connection, f"SAVEPOINT {_SAVEPOINT}")
        try:
            joined = await self._prove(connection, header, version)
            await self._tried(connection, f"RELEASE {_SAVEPOINT}")
        except BaseException:
            await undo_savepoint(connection, _SAVEPOINT)
            raise
        return joined

    async def _prove(self, connection: ApplicationConnection, header: Key, version: int) -> _Joined:
        """Return the joined transaction, which is proved to be one of the store's own database."""
        found = await self._look(connection, await self._witness.key(), header)
        is_free, is_read_only, isolation, idle, pid, began_us, actual, indexes, _ = found
        if is_free:
            # Perhaps the store has lost the connection that held the lock.
            is_free = (await self._look(connection, await self._witness.renew(), header))[0]
        if is_free:
            raise self._another(connection)
        if is_read_only:
            raise _read_only(connection, "it allows no writes")
        if actual != version:
            if isolation in _SNAPSHOTS:
                raise InvalidInput(
                    f"{connection.what} has a {isolation} snapshot that is older than the transaction; begin the block"
                    " before the first statement"
                )
            raise VersionMismatch(header, actual)
        pause_ms = _shorter(self._pause_max_ms, idle)
        return _Joined(pid, began_us, header, version, decode_indexes(header, indexes), pause_ms)

    async def _look(self, connection: ApplicationConnection, key: int, header: Key) -> Row:
        rows = await self._tried(connection, self.qualified(_JOIN), key, header.path, partition_of(header))
        return rows[0]

    async def _tried(self, connection: ApplicationConnection, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement of the join; an error says what is wrong with the connection."""
        try:
            return await connection.execute(text, *arguments)
        except TxnFrameworkError:
            raise
        except Exception as error:
            code = sqlstate(error)
            if code in _NOT_THERE:
                raise self._another(connection, reason(error)) from error
            if code == _FAILED_TRANSACTION:
                raise InvalidInput(
                    f"a statement in the transaction of {connection.what} failed before; roll it back before the block"
                ) from error
            raise self.explained(connection, error) from error

    def _another(self, connection: ApplicationConnection, why: str = "") -> InvalidInput:
        shown = f" ({why})" if why else ""
        return InvalidInput(
            f"{connection.what} is not connected to the database of the metadata store, {self.executor.shown_url};"
            f" one COMMIT can decide only what is in one database{shown}"
        )


def _read_only(connection: ApplicationConnection, why: str) -> InvalidInput:
    return InvalidInput(
        f"{connection.what} is read-only or connected to a standby ({why}); pass one that may write to the primary"
    )


@dataclass(frozen=True, slots=True)
class _Joined:
    """The transaction, as the server knows it, and the header at its version."""

    pid: int
    began_us: int
    header: Key
    version: int
    before: frozenset[IndexEntry]
    pause_ms: int

    @property
    def bounds(self) -> tuple[object, ...]:
        """The first three arguments of the statements that write."""
        return self.pid, self.began_us, str(self.pause_ms)


def _shorter(pause_max_ms: int, setting: str) -> int:
    """Return the shorter of the option and the connection's own setting, which PostgreSQL shows with a unit."""
    number = "".join(character for character in setting if character.isdigit())
    own_ms = int(number or 0) * _MS_BY_UNIT.get(setting[len(number) :], 1)
    return min(pause_max_ms, own_ms) if own_ms else pause_max_ms


@implementer(IDatabaseTransaction)
class PostgresqlTransaction:
    """
    One transaction of the application's connection.

    The put locks the header until the COMMIT. If this process stops in between, the server ends the transaction after
    ``pause_max_ms``.
    """

    def __init__(self, joins: PostgresqlJoins, connection: ApplicationConnection, joined: _Joined) -> None:
        self._joins = joins
        self._connection = connection
        self._joined = joined
        self._changes: tuple[Change, ...] = ()
        # A query that finds the put; None: the put is outside all savepoints.
        self._check: str | None = None
        self._is_ended = False

    # Writers of different rows do not wait for each other.
    store_waits: str | None = None

    async def put(self, write: Put) -> int:
        """Write the record inside the application's transaction."""
        await require_joined(self._connection)
        await self._connection.flush()
        try:
            if write.key == self._joined.header and write.expected == self._joined.version:
                return await self._replace(write)
            return await self._put_by_steps(write)
        except TxnFrameworkError:
            raise
        except Exception as error:
            if sqlstate(error) == _SERIALIZATION_FAILURE:
                await self._require_unchanged(write, error)
            explained = self._joins.explained(self._connection, error)
            if explained is error:
                raise
            raise explained from error

    async def commit(self) -> None:
        """Commit the application's transaction."""
        try:
            await commit(self._connection, self._check, lambda error: sqlstate(error) is not None)
            self._is_ended = True
        finally:
            await self._connection.leave()
            # The outcome is not always known: a possible change wakes watches as well.
            self._joins.executor.changed(self._changes)

    async def rollback(self) -> None:
        """Roll the application's transaction back; do nothing if it has ended."""
        if self._is_ended:
            return
        self._is_ended = True
        try:
            if await self._is_joined():
                await roll_back(self._connection)
        finally:
            await self._connection.leave()

    async def _is_joined(self) -> bool:
        """Return False if the application has ended the transaction; another one may be open by now."""
        try:
            if not await self._connection.is_joined():
                return False
            joined: bool = (await self._execute(f"SELECT {_IS_JOINED}", self._joined.pid, self._joined.began_us))[0][0]
        except Exception:  # The connection is lost, or the transaction has failed and can only be rolled back.
            return True
        return joined

    async def _replace(self, write: Put) -> int:
        """Write the header in one statement; versions are never reused, so its index entries before are known."""
        joined, after = self._joined, frozenset(write.indexes)
        change = RecordChange(write.key.path, partition_of(write.key), joined.before | after)
        (payload,) = payloads((change,))
        rows = await self._execute(
            _REPLACE,
            *joined.bounds,
            *(write.key.path, partition_of(write.key), bytes(write.value), encode_indexes(after)),
            *(write.expected, encode_indexes(joined.before)),
            *_columns(joined.before - after),
            *_columns(after - joined.before),
            *(self._joins.executor.pool.channel, payload),
        )
        is_same, is_kept, version, is_outermost = rows[0]
        self._require_kept(is_same, is_kept)
        if version is None:
            found = await self._execute(
                f"SELECT version FROM {SCHEMA}.records WHERE path = $1::text AND partition = $2::text",  # noqa: S608
                write.key.path,
                partition_of(write.key),
            )
            raise VersionMismatch(write.key, found[0][0] if found else None)
        self._check = None if is_outermost else self._find(write, int(version))
        self._changes = (change,)
        return int(version)

    def _require_kept(self, is_same: bool, is_kept: bool) -> None:
        if not is_same:
            raise ended(self._connection)
        if not is_kept:
            raise undone(self._connection)

    def _find(self, write: Put, version: int) -> str:
        """
        Return a query that finds the put.

        A ROLLBACK TO without RELEASE keeps the savepoint, and asyncpg and SQLAlchemy do so. The put is then inside it.
        The COMMIT includes both, unless another task rolls back to the savepoint in between. Then the COMMIT would
        decide the rows without the header.
        """
        at = (
            f"pg_catalog.convert_from(pg_catalog.decode('{part.encode().hex()}', 'hex'), 'UTF8')" for part in _at(write)
        )
        path, partition = at
        return self._joins.qualified(
            f"SELECT 1 FROM {SCHEMA}.records"  # noqa: S608 - no text of others
            f" WHERE path = {path} AND partition = {partition} AND version = {version}"
        )

    async def _require_unchanged(self, write: Put, error: Exception) -> None:
        """Raise VersionMismatch if a serialization failure is due to a change of the record itself."""
        record = await self._joins.record(write.key)
        actual = None if record is None else record.version
        if isinstance(write.expected, int) and actual != write.expected:
            raise VersionMismatch(write.key, actual) from error

    async def _put_by_steps(self, write: Put) -> int:
        """Write any record, in several statements."""
        rows = await self._execute(_BIND, *self._joined.bounds, self._joined.header.path)
        self._require_kept(*rows[0][:2])
        changes: list[Change] = []
        record = await self._perform(put_record(write), changes)
        is_outermost = (await self._execute(_IS_OUTERMOST, *_at(write)))[0][0]
        self._check = None if is_outermost else self._find(write, record.version)
        await self._execute(_NOTIFY, self._joins.executor.pool.channel, payloads(changes))
        self._changes = tuple(changes)
        return record.version

    async def _perform(self, steps: Steps[T], changes: list[Change]) -> T:
        answer: object = None
        try:
            while True:
                call = steps.send(answer)
                if isinstance(call, Rows | Write):
                    answer = await self._answer(call.statement, call.parameters)
                elif isinstance(call, NewNumber):
                    answer = (await self._execute(_NEW_NUMBER))[0][0]
                else:
                    assert isinstance(call, RecordChange), "a put needs nothing else"
                    changes.append(call)
                    answer = None
        except StopIteration as end:
            result: T = end.value
            return result

    async def _answer(self, statement: Any, parameters: Mapping[str, object]) -> object:
        prepared = prepare(statement)
        return await self._execute(prepared.text, *prepared.bind(parameters))

    async def _execute(self, text: str, *arguments: object) -> list[Row]:
        return await self._connection.execute(self._joins.qualified(text), *arguments)


def _at(write: Put) -> tuple[str, str]:
    return write.key.path, partition_of(write.key)


def _columns(entries: frozenset[IndexEntry]) -> tuple[list[str], list[bytes]]:
    return [entry.index for entry in entries], [entry.key for entry in entries]
