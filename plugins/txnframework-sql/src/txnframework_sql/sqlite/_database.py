"""What is SQLite's own: where the file is, how it is opened, and how its transactions begin and end."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sqlalchemy import NullPool, create_engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from txnframework.config import redact_url
from txnframework.errors import InvalidInput, Unavailable
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, is_locked
from txnframework_sql.sqlite._opened import open_files
from txnframework_sql.sqlite._permissions import make_directory, make_file, warn_if_others_read
from txnframework_sql.sqlite._statements import Statements
from txnframework_sql.sqlite._turn import Turn

_PRAGMAS = (
    # Of a file that is empty yet; others keep theirs. Entries are large, and are written in half the time to fewer
    # pages; a commit of some small records takes as long as with 4 KiB.
    "PRAGMA page_size = 16384",
    # A commit is on disk before it is confirmed; in WAL mode that is one fsync of the log.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    # We wait ourselves: SQLite's own waiting sleeps up to 100 ms between two looks, and whole seconds in some builds.
    "PRAGMA busy_timeout = 0",
    # The log gives room back after a burst.
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA cache_size = -16384",
    "PRAGMA temp_store = MEMORY",
)
# Hot pages are copied into the file once for so much of the log.
_LOG_BYTES = 16 << 20
_USER_VERSIONS = 1 << 31
_FIRST_WAIT_S = 0.0002
_LONGEST_WAIT_S = 0.004
# Whoever has waited so long for the write lock takes the turn, and the others stand back.
_PATIENCE_S = 0.02
# How long the turn of another process is respected. Turns make writers fair and no more: one that was stopped while it
# has the turn must not stop the others.
_TURN_MAX_S = 0.25


@dataclass(frozen=True, slots=True)
class Location:
    """A database file; ``shown_url`` may be printed."""

    path: Path
    shown_url: str


def locate(url: str) -> Location:
    """
    Return the file that a URL names, as an absolute path without links.

    :raises InvalidInput: it names none.
    """
    shown = redact_url(url)
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidInput(f"{shown} is not a database URL; write sqlite:///directory/txn.db") from error
    backend = parsed.get_backend_name()
    if backend != "sqlite":
        raise InvalidInput(f"{shown}: this release of txnframework-sql knows SQLite and PostgreSQL only, not {backend}")
    if parsed.query or parsed.host or not parsed.database or parsed.database.startswith((":memory:", "file:")):
        raise InvalidInput(f"{shown} names no file; write sqlite:///directory/txn.db (four slashes: absolute)")
    return Location(Path(parsed.database).expanduser().resolve(), shown)


class SqliteDatabase(Statements):
    """
    One connection to a SQLite file in WAL mode.

    SQLAlchemy is kept in autocommit mode, in which neither it nor the driver sends BEGIN or COMMIT by itself.
    """

    def __init__(self, location: Location, lock_timeout_ms: int) -> None:
        try:
            make_directory(location.path.parent)
        except OSError as error:
            raise Unavailable(f"{location.shown_url}: its directory cannot be made: {error.strerror}") from error
        engine = create_engine(
            URL.create("sqlite", database=str(location.path)), isolation_level="AUTOCOMMIT", poolclass=NullPool
        )
        self._file = open_files.begin(location.path, location.shown_url)
        try:
            try:
                # What cannot be made here, SQLite cannot make either, and says why.
                with suppress(OSError):
                    make_file(location.path)
                warn_if_others_read(location.path, location.shown_url)
                connection = engine.connect()
            finally:
                if self._file is None:
                    self._file = open_files.made(location.path)
        except BaseException:
            open_files.end(self._file)
            raise
        self._lock_timeout_s = lock_timeout_ms / 1000
        super().__init__(connection)
        self.shown_url = location.shown_url
        self._driver = cast(sqlite3.Connection, connection.connection.driver_connection)
        self._turn = Turn(location.path)
        try:
            for pragma in _PRAGMAS:
                self._when_unlocked(pragma)
            self._when_unlocked(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // self._one('PRAGMA page_size')}")
        except BaseException:
            self.close()
            raise

    def use_write_ahead_log(self) -> None:
        """Switch the file to WAL mode; it stays so for everybody."""
        self._when_unlocked("PRAGMA journal_mode = WAL")

    def begin_read(self) -> None:
        """Take one view of everything that is committed now."""
        self._driver.execute("BEGIN")
        try:
            # The view is taken by the first read. In WAL mode that waits only for another process that is recovering
            # the log of one that was killed.
            self._when_unlocked("SELECT 1 FROM sqlite_schema LIMIT 1")
        except BaseException:
            self.rollback()
            raise

    def begin_write(self) -> None:
        """Take the one write lock of the file, waiting for other processes as long as ``lock_timeout_ms``."""
        now = time.monotonic()
        deadline_s = now + self._lock_timeout_s
        if _sleep_until(lambda: self._turn.is_free() and self._succeeds("BEGIN IMMEDIATE"), now + _PATIENCE_S):
            return
        try:
            # Without the turn in time it is tried all the same: whoever has it may have been stopped.
            _sleep_until(self._turn.take, min(deadline_s, time.monotonic() + _TURN_MAX_S))
            self._when_unlocked("BEGIN IMMEDIATE", deadline_s)
        finally:
            self._turn.give()

    def commit(self) -> None:
        """Make the transaction durable."""
        self.connection.exec_driver_sql("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction; without one, nothing happens."""
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")

    def overwrite_lost(self) -> None:
        """
        Change the header of the file, in a field that SQLite leaves to applications.

        A COMMIT whose sync failed has its pages in the log, unseen: the index of the log does not name them, but who
        recovers the log after a crash would find them whole. The next commit is written over them.
        """
        self._driver.execute(f"PRAGMA user_version = {(self._one('PRAGMA user_version') + 1) % _USER_VERSIONS}")

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way; several errors end one by themselves."""
        return self._driver.in_transaction

    @property
    def writes(self) -> int:
        """How many rows this connection has changed."""
        return self._driver.total_changes

    def table_names(self) -> frozenset[str]:
        """Return the names of all tables."""
        found = self._driver.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return frozenset(name for (name,) in found)

    def close(self) -> None:
        """Close the connection; the last one of all processes moves the log into the file."""
        self._turn.close()
        engine = self.connection.engine
        self.connection.close()
        engine.dispose()
        open_files.end(self._file)
        self._file = None

    def _one(self, text: str) -> Any:
        (value,) = self._driver.execute(text).fetchone()
        return value

    def _when_unlocked(self, text: str, deadline_s: float | None = None) -> None:
        """Execute as soon as no other connection is in the way, or let the driver's error out after the timeout."""
        until_s = time.monotonic() + self._lock_timeout_s if deadline_s is None else deadline_s
        if not _sleep_until(lambda: self._succeeds(text), until_s):
            self._driver.execute(text).fetchall()

    def _succeeds(self, text: str) -> bool:
        """Execute; return whether no other connection was in the way."""
        try:
            self._driver.execute(text).fetchall()
        except DATABASE_ERRORS as error:
            if is_locked(error):
                return False
            raise
        return True


def _sleep_until(is_done: Callable[[], bool], deadline_s: float) -> bool:
    """Ask again and again, at least once, until it is done; False: it was not by the deadline."""
    wait_s = _FIRST_WAIT_S
    while not is_done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
    return True
