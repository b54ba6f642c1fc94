"""One connection to a SQLite file: its opening, its transactions, and the steps performed in them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from shutil import disk_usage
from typing import Any, TypeVar, cast

from sqlalchemy import Executable, NullPool, bindparam, create_engine, update
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.compiler import SQLCompiler

from txnframework.errors import Unavailable
from txnframework_sql.schema import counters
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, is_locked, locked
from txnframework_sql.sqlite._files import (
    WriterFairness,
    make_directory,
    make_file,
    open_files,
    warn_if_others_read,
    warn_if_remote,
)
from txnframework_sql.sqlite._location import Location
from txnframework_sql.sqlite._presence import Presence
from txnframework_sql.sqlite._statements import CompiledStatement
from txnframework_sql.steps.statements import (
    Call,
    Change,
    FirstRows,
    Lock,
    NewNumber,
    NewNumbers,
    Row,
    Rows,
    SkipNumbers,
    Steps,
    Write,
    WriteMany,
)

T = TypeVar("T")

Pause = Callable[[float], None]
"""Passes about so many seconds."""

_NEW_NUMBERS = (
    update(counters)
    .where(counters.c.name == "number")
    .values(value=counters.c.value + bindparam("count"))
    .returning(counters.c.value)
)
_SKIP_NUMBERS = (
    update(counters)
    .where(counters.c.name == "number", counters.c.value < bindparam("higher"))
    .values(value=bindparam("higher"))
)


_PRAGMAS = (
    # Applies to an empty file; other files keep their page size. Entries are large, so a larger page size halves the
    # time of their writes. A commit of a few small records takes as long as with 4 KiB.
    "PRAGMA page_size = 16384",
    # A commit is on disk before it is confirmed; in WAL mode that is one fsync of the log.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    # This class waits itself: SQLite's own wait sleeps up to 100 ms between attempts, and whole seconds in some builds.
    "PRAGMA busy_timeout = 0",
    "PRAGMA cache_size = -16384",
    "PRAGMA temp_store = MEMORY",
)
# A checkpoint copies frequently changed pages into the file once per this many bytes of the log.
_LOG_BYTES = 16 << 20
# On a small disk, the log takes at most this part of what is free when the file is opened. A log that fills the disk
# leaves no space for the file, and no checkpoint could ever end.
_LOG_SHARE = 16
_LOG_BYTES_MIN = 256 << 10
# After a burst, the log shrinks to this many times its bytes.
_BURST = 4
# Statements that stay prepared: more than all steps have, with several numbers of rows for an INSERT.
_STATEMENTS_MAX = 512
_FIRST_WAIT_S = 0.0002
_LONGEST_WAIT_S = 0.004
# A process that has waited this long for the write lock acquires the fairness lock, and the other processes hold back.
_PATIENCE_S = 0.02
# How long the fairness lock of another process is respected. A process that was stopped while it holds that lock must
# not block the others.
_FAIRNESS_MAX_S = 0.25


@dataclass(frozen=True, slots=True)
class FileContents:
    """
    What a file contains.

    ``tables``: their names. ``names``: those of tables, views and indexes; SQLite ignores the case of names, and they
    are in lower case. ``application_id``: the number by which a program marks a file as its own; 0: none. ``encoding``:
    of all texts in the file.
    """

    tables: frozenset[str]
    names: frozenset[str]
    application_id: int
    encoding: str


def log_bytes(free_bytes: int) -> int:
    """Return how long the log may become before a checkpoint, on a disk with this much free space."""
    return max(_LOG_BYTES_MIN, min(_LOG_BYTES, free_bytes // _LOG_SHARE))


class SqliteConnection:
    """
    One connection to a SQLite file in WAL mode, and the performing of steps on it; only one thread uses it.

    SQLAlchemy is kept in autocommit mode, in which neither it nor the driver sends BEGIN or COMMIT implicitly.
    """

    def __init__(self, location: Location, lock_timeout_ms: int) -> None:
        try:
            make_directory(location.path.parent)
        except OSError as error:
            raise Unavailable(f"{location.shown_url}: its directory cannot be created: {error.strerror}") from error
        engine = create_engine(
            URL.create("sqlite", database=str(location.path)),
            isolation_level="AUTOCOMMIT",
            poolclass=NullPool,
            connect_args={"cached_statements": _STATEMENTS_MAX},
        )
        self._file = open_files.begin(location.path, location.shown_url)
        self._presence = Presence(location.path)
        try:
            try:
                # If the file cannot be created here, SQLite fails as well, and reports the reason.
                with suppress(OSError):
                    make_file(location.path)
                warn_if_others_read(location.path, location.shown_url)
                warn_if_remote(location.path, location.shown_url)
                # Before SQLite opens the log and its index: no process removes them afterwards.
                _sleep_until(self._presence.enter, time.monotonic() + lock_timeout_ms / 1000)
                connection = engine.connect()
            finally:
                if self._file is None:
                    self._file = open_files.made(location.path)
        except BaseException:
            self._presence.leave()
            self._presence.close()
            open_files.end(self._file)
            raise
        self._lock_timeout_s = lock_timeout_ms / 1000
        self.shown_url = location.shown_url
        self.sqlalchemy_connection = connection
        self.changes: list[Change] = []
        """The changes of the current transaction, for the watches."""
        self._prepared: dict[Executable, CompiledStatement] = {}
        self._cursor: DBAPICursor = connection.connection.cursor()
        self._driver = cast(sqlite3.Connection, connection.connection.driver_connection)
        self._fairness = WriterFairness(location.path)
        try:
            for pragma in _PRAGMAS:
                self._when_unlocked(pragma)
            bytes_ = log_bytes(disk_usage(location.path.parent).free)
            self._when_unlocked(f"PRAGMA journal_size_limit = {bytes_ * _BURST}")
            self._when_unlocked(f"PRAGMA wal_autocheckpoint = {bytes_ // self._one('PRAGMA page_size')}")
        except BaseException:
            self.close()
            raise

    def perform(self, steps: Steps[T]) -> T:
        """Perform steps within the current transaction."""
        answer: object = None
        try:
            while True:
                answer = self._answer(steps.send(answer))
        except StopIteration as end:
            result: T = end.value
            return result

    def write_many(self, statement: Executable, rows: Sequence[Mapping[str, object]]) -> None:
        """Execute a statement once for each of the rows."""
        self._prepare(statement).execute_many(self._cursor, rows)

    def use_write_ahead_log(self) -> None:
        """
        Switch the file to WAL mode, and protect the log while this connection is open.

        The mode is permanent and applies to all processes. Only a program that is not a store's can change it.
        """
        self._when_unlocked("PRAGMA journal_mode = WAL")
        # Window: the locks of a file that was not in WAL mode when it was opened begin here.
        if not _sleep_until(self._presence.enter, time.monotonic() + self._lock_timeout_s):
            raise locked()
        self._presence.enter_index()

    def begin_read(self) -> None:
        """Begin a transaction that reads one snapshot of all current commits."""
        self._driver.execute("BEGIN")
        try:
            # The first read takes the snapshot. In WAL mode it waits only while another process recovers the log of a
            # killed one.
            self._when_unlocked("SELECT 1 FROM sqlite_schema LIMIT 1")
        except BaseException:
            self.rollback()
            raise

    def begin_write(self, pause: Pause = time.sleep) -> None:
        """
        Acquire the write lock of the file; wait for other connections for at most ``lock_timeout_ms``.

        :param pause: is called between two attempts, outside of a transaction. It may read.
        """
        now = time.monotonic()
        deadline_s = now + self._lock_timeout_s
        if _sleep_until(lambda: self._fairness.is_free() and self._begins_to_write(), now + _PATIENCE_S, pause):
            return
        try:
            # If this times out, the write lock is tried anyway: the holder of the fairness lock may have been stopped.
            _sleep_until(self._fairness.acquire, min(deadline_s, time.monotonic() + _FAIRNESS_MAX_S), pause)
            if not _sleep_until(self._begins_to_write, deadline_s, pause):
                raise locked()
        finally:
            self._fairness.release()

    def commit(self) -> None:
        """Make the transaction durable."""
        self.sqlalchemy_connection.exec_driver_sql("COMMIT")
        self._presence.end_writing()

    def rollback(self) -> None:
        """Roll the transaction back; without one, do nothing."""
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")
        self._presence.end_writing()

    def overwrite_lost(self) -> None:
        """
        Skip a number, which is a commit without a visible effect.

        A COMMIT whose sync failed leaves its pages in the log, but not in the log's index. They are therefore
        invisible, but a recovery after a crash would find them complete. The next commit overwrites them.
        """
        self._answer(NewNumber())

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open; several errors end one implicitly."""
        return self._driver.in_transaction

    @property
    def writes(self) -> int:
        """The number of rows that this connection has changed."""
        return self._driver.total_changes

    def contents(self) -> FileContents:
        """Return what the file contains."""
        found = self._driver.execute("SELECT type, lower(name) FROM sqlite_schema WHERE type <> 'trigger'").fetchall()
        return FileContents(
            frozenset(name for kind, name in found if kind == "table"),
            frozenset(name for _, name in found),
            self._one("PRAGMA application_id"),
            self._one("PRAGMA encoding"),
        )

    def close(self) -> None:
        """Close the connection; the last connection of all processes moves the log into the file."""
        self._fairness.close()
        engine = self.sqlalchemy_connection.engine
        self._presence.leave()
        self.sqlalchemy_connection.close()
        engine.dispose()
        self._presence.close()
        open_files.end(self._file)
        self._file = None

    def _answer(self, call: Call) -> Any:
        if isinstance(call, Rows):
            prepared = self._prepare(call.statement)
            self._cursor.execute(prepared.text, prepared.bind(call.parameters))
            return self._cursor.fetchall()
        if isinstance(call, Write):
            prepared = self._prepare(call.statement)
            self._cursor.execute(prepared.text, prepared.bind(call.parameters))
            return self._cursor.rowcount
        if isinstance(call, FirstRows):
            return self._first_rows(call)
        if isinstance(call, Lock):
            # Only one writer at a time holds the file's write lock.
            return None
        if isinstance(call, WriteMany):
            self.write_many(call.statement, call.parameters)
            return None
        if isinstance(call, NewNumber):
            return self._answer(Rows(_NEW_NUMBERS, {"count": 1}))[0][0]
        if isinstance(call, NewNumbers):
            last = self._answer(Rows(_NEW_NUMBERS, {"count": call.count}))[0][0]
            return list(range(last - call.count + 1, last + 1))
        if isinstance(call, SkipNumbers):
            return self._answer(Write(_SKIP_NUMBERS, {"higher": call.number}))
        self.changes.append(call)
        return None

    def _first_rows(self, call: FirstRows) -> list[Row]:
        """Fetch rows one by one, because the unwanted rows may be large."""
        prepared = self._prepare(call.statement)
        found: list[Row] = []
        # A cursor of its own, closed before the transaction ends: a statement that is not finished by then loses its
        # remaining rows.
        cursor = self.sqlalchemy_connection.connection.cursor()
        try:
            cursor.execute(prepared.text, prepared.bind(call.parameters))
            while (row := cursor.fetchone()) is not None and call.is_wanted(row):
                found.append(row)
        finally:
            cursor.close()
        return found

    def _prepare(self, statement: Executable) -> CompiledStatement:
        prepared = self._prepared.get(statement)
        if prepared is None:
            compiled = statement.compile(dialect=self.sqlalchemy_connection.dialect)  # type: ignore[attr-defined]
            assert isinstance(compiled, SQLCompiler)
            prepared = self._prepared[statement] = CompiledStatement(compiled)
        return prepared

    def _one(self, text: str) -> Any:
        (value,) = self._driver.execute(text).fetchone()
        return value

    def _when_unlocked(self, text: str) -> None:
        """Execute once no other connection holds the lock; raise the driver's error after the timeout."""
        if not _sleep_until(lambda: self._succeeds(text), time.monotonic() + self._lock_timeout_s):
            self._driver.execute(text).fetchall()

    def _begins_to_write(self) -> bool:
        """Begin a writing transaction; return False if another connection has one."""
        if not self._presence.begin_writing():
            return False
        is_begun = False
        try:
            is_begun = self._succeeds("BEGIN IMMEDIATE")
        finally:
            if not is_begun:
                self._presence.end_writing()
        return is_begun

    def _succeeds(self, text: str) -> bool:
        """Execute; return False if another connection held the lock."""
        try:
            self._driver.execute(text).fetchall()
        except DATABASE_ERRORS as error:
            if is_locked(error):
                return False
            raise
        return True


def _sleep_until(is_done: Callable[[], bool], deadline_s: float, pause: Pause = time.sleep) -> bool:
    """Call ``is_done`` until it returns True, at least once; return False at the deadline."""
    wait_s = _FIRST_WAIT_S
    while not is_done():
        if time.monotonic() > deadline_s:
            return False
        pause(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
    return True
