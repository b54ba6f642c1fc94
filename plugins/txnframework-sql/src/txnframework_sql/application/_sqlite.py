"""A transaction of the application on SQLite that a step joins."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Executable, bindparam, update
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.sql.compiler import SQLCompiler
from zope.interface import implementer

from txnframework.errors import InvalidInput, TxnFrameworkError
from txnframework.interfaces import IDatabaseTransaction
from txnframework.model import Key
from txnframework.runtime.calling_thread import in_calling_thread
from txnframework_sql.application._connection import (
    ApplicationConnection,
    Row,
    commit,
    in_savepoint,
    of_old_snapshot,
    reason,
    require_joined,
    roll_back,
)
from txnframework_sql.application._kinds import connection_of
from txnframework_sql.schema import counters
from txnframework_sql.sqlite._errors import extended_code, sqlite_code
from txnframework_sql.sqlite._files import file_id, warn_if_log_may_be_reset
from txnframework_sql.sqlite._location import Location
from txnframework_sql.steps.records import get_record
from txnframework_sql.steps.statements import (
    Change,
    FirstRows,
    LedgerChange,
    Lock,
    NewNumber,
    NewNumbers,
    RecordChange,
    Rows,
    Steps,
    Write,
    WriteMany,
    partition_of,
)

T = TypeVar("T")

_DIALECT = SQLiteDialect_pysqlite(paramstyle="qmark")
_STATEMENTS_MAX = 256
_NEW_NUMBERS = (
    update(counters)
    .where(counters.c.name == "number")
    .values(value=counters.c.value + bindparam("count"))
    .returning(counters.c.value)
)
# SQLite's levels: 1 is NORMAL, which with a write-ahead log does not sync a commit.
_FULL = 2
# After these answers the transaction is still open, and a rollback follows.
_NOT_COMMITTED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY)
# The write lock may also be held by another process, for the time of one commit.
_PROBE_S = 0.1
# Takes the write lock, and fails if the view of the transaction is older than the last write.
_TAKE_LOCK = "UPDATE main.counters SET value = value WHERE name = 'number'"


class SqliteJoins:
    """
    Joins transactions of applications in the file of a store.

    :param changed: reports the changes of a commit to the watches of this process.
    """

    def __init__(self, location: Location, changed: Callable[[tuple[Change, ...]], None]) -> None:
        self.location = location
        self.changed = changed

    async def join(self, given: object) -> SqliteTransaction:
        """
        Join the application's transaction.

        Nothing is read from the file. A read would begin a view, and after a write of the store the first own row would
        fail.
        """
        connection = connection_of(given, in_calling_thread)
        warn_if_log_may_be_reset(self.location.path, self.location.shown_url, sqlite3.sqlite_version_info)
        is_own = await connection.begin()
        try:
            await _require_file(connection, self.location)
            if await connection.has_savepoint():
                raise in_savepoint(connection)
            was_open = connection.is_in_transaction() and not is_own
            await connection.watch()
            return SqliteTransaction(self, connection, was_open=was_open)
        except BaseException:
            if is_own:
                await roll_back(connection)
            raise


async def _require_file(connection: ApplicationConnection, location: Location) -> None:
    if connection.kind != "sqlite":
        raise _another(connection, location)
    wanted = file_id(location.path)
    found = {name: path for _, name, path in await connection.execute("PRAGMA database_list")}
    if not found["main"] or file_id(Path(found["main"])) != wanted:
        if any(path and file_id(Path(path)) == wanted for path in found.values()):
            raise InvalidInput(
                f"{connection.what} has attached the file of the metadata store to another one, and SQLite does not"
                " commit two files together; open the file of the store itself"
            )
        raise _another(connection, location)
    if (await connection.execute("PRAGMA main.synchronous"))[0][0] < _FULL:
        raise InvalidInput(
            f"{connection.what} does not wait until a commit is on disk; run PRAGMA synchronous = FULL after connecting"
        )


def _another(connection: ApplicationConnection, location: Location) -> InvalidInput:
    return InvalidInput(
        f"{connection.what} is not connected to the file of the metadata store, {location.shown_url}; one COMMIT can"
        " decide only what is in one file"
    )


@implementer(IDatabaseTransaction)
class SqliteTransaction:
    """
    One transaction of the application's connection.

    SQLite has one writer for each file. From the first own row to the COMMIT that is the application, and the store
    cannot write.
    """

    def __init__(self, joins: SqliteJoins, connection: ApplicationConnection, *, was_open: bool) -> None:
        self._joins = joins
        self._connection = connection
        self._changes_before = connection.changes()
        self._was_open = was_open
        # None: it is not known yet.
        self._holds_lock = None if was_open else False
        self._changes: tuple[Change, ...] = ()
        self._check: str | None = None
        self._is_ended = False
        self._is_refused = False

    @property
    def store_waits(self) -> str | None:
        """Why a write of the store would wait for this transaction, and this one for the write; None: it would not."""
        if not self._connection.is_in_transaction():
            return None
        if self._connection.changes() == self._changes_before:
            if self._holds_lock is None:
                self._holds_lock = _is_locked(self._joins.location.path)
            if not self._holds_lock:
                return None
        return (
            f"{self._connection.what} has already written a row, and SQLite has one writer for each file; send and"
            " acknowledge before the first own row is written; an ORM session does that by itself, because it flushes"
            " at commit"
        )

    async def step(self, steps: Steps[Sequence[T | Exception]], header: Key) -> T:
        """Perform steps inside the application's transaction; one of them writes the record ``header``."""
        await require_joined(self._connection)
        await self._connection.flush()
        try:
            if not self._connection.is_in_transaction():
                # No own row was written. Otherwise the driver would begin with a view, which may be outdated.
                await self._connection.execute("BEGIN IMMEDIATE")
            self._holds_lock = True
            changes: list[Change] = []
            (done,) = await self._perform(steps, changes)
            if isinstance(done, Exception):
                if self._was_open:  # perhaps an old view has refused it
                    await self._connection.execute(_TAKE_LOCK)
                raise done
            version = await self._perform(get_record(header), [])
        except TxnFrameworkError:
            raise
        except Exception as error:
            if sqlite_code(error) == sqlite3.SQLITE_READONLY:
                what = self._connection.what
                raise InvalidInput(f"{what} is read-only ({reason(error)}); pass one that may write") from error
            if self._was_open and extended_code(error) == sqlite3.SQLITE_BUSY_SNAPSHOT:
                raise of_old_snapshot(self._connection) from error
            raise
        self._changes = tuple(changes)
        # A savepoint that is older than the block may still be open. If it is rolled back now, the put is undone, but
        # not the rows before it. The COMMIT would decide only these.
        self._check = None if version is None else _find(header, version.version)
        return done

    async def commit(self) -> None:
        """Commit the application's transaction."""
        try:
            await commit(self._connection, self._check, lambda error: sqlite_code(error) in _NOT_COMMITTED)
            self._is_ended = True
        except BaseException:
            self._is_refused = True
            raise
        finally:
            await self._connection.leave()
            self._joins.changed(self._changes)

    async def rollback(self) -> None:
        """Roll the application's transaction back; do nothing if it has ended."""
        if self._is_ended:
            return
        self._is_ended = True
        try:
            # After a COMMIT that a constraint refuses, the transaction is open, though its driver may have left it.
            if await self._connection.is_joined() or (self._is_refused and self._connection.is_in_transaction()):
                await roll_back(self._connection)
        finally:
            await self._connection.leave()

    async def _perform(self, steps: Steps[T], changes: list[Change]) -> T:
        answer: object = None
        try:
            while True:
                call = steps.send(answer)
                answer = None
                if isinstance(call, Rows | Write):
                    answer = await self._answer(call.statement, call.parameters)
                elif isinstance(call, FirstRows):
                    answer = list(takewhile(call.is_wanted, await self._answer(call.statement, call.parameters)))
                elif isinstance(call, WriteMany):
                    for parameters in call.parameters:
                        await self._answer(call.statement, parameters)
                elif isinstance(call, NewNumber):
                    answer = (await self._answer(_NEW_NUMBERS, {"count": 1}))[0][0]
                elif isinstance(call, NewNumbers):
                    last = (await self._answer(_NEW_NUMBERS, {"count": call.count}))[0][0]
                    answer = list(range(last - call.count + 1, last + 1))
                elif not isinstance(call, Lock):  # there is one writer
                    assert isinstance(call, RecordChange | LedgerChange), "no step skips numbers"
                    changes.append(call)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _answer(self, statement: Executable, parameters: Mapping[str, object]) -> list[Row]:
        text, order, defaults = _compiled(statement)
        values = [parameters[name] if name in parameters else defaults[name] for name in order]
        return await self._connection.execute(text, *values)


def _find(key: Key, version: int) -> str:
    """Return a query that finds a version of a record."""
    path, partition = (f"CAST(x'{part.encode().hex()}' AS TEXT)" for part in (key.path, partition_of(key)))
    return (
        "SELECT 1 FROM main.records"  # noqa: S608 - no text of others
        f" WHERE path = {path} AND partition = {partition} AND version = {version}"
    )


@lru_cache(_STATEMENTS_MAX)
def _compiled(statement: Executable) -> tuple[str, tuple[str, ...], dict[str, object]]:
    # With the name of the file, because a temporary table of the application may have the name of one of ours.
    compiled = statement.compile(  # type: ignore[attr-defined]
        dialect=_DIALECT, schema_translate_map={None: "main"}, render_schema_translate=True
    )
    assert isinstance(compiled, SQLCompiler)
    return str(compiled), tuple(compiled.positiontup or ()), dict(compiled.params)


def _is_locked(path: Path) -> bool:
    """Return whether a connection keeps the write lock of the file."""
    with closing(sqlite3.connect(path, timeout=_PROBE_S, isolation_level=None)) as probe:
        try:
            probe.execute("BEGIN IMMEDIATE")
            probe.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
    return False
