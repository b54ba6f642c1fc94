"""Connections of an application to its tables in a SQLite file, as the suite of ``ICoCommitStore`` uses them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from txnframework.testing import OwnRows

# SQLite checks the foreign key of a part at the COMMIT.
TABLES = (
    "CREATE TABLE IF NOT EXISTS suite_rows (key TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS suite_parts (whole TEXT REFERENCES suite_rows (key) DEFERRABLE INITIALLY DEFERRED)",
)
"""The tables of the application, in the words that SQLite and PostgreSQL have in common."""

KEYS = "SELECT key FROM suite_rows"
"""Finds the rows."""

PART = "INSERT INTO suite_parts (whole) VALUES ('absent')"
"""A row that makes the database refuse the COMMIT."""

SQLITE3, AUTOCOMMIT = "sqlite3", "sqlite3-autocommit"


class LosingConnection(sqlite3.Connection):
    """A connection whose next COMMIT can be lost, before or after the database has applied it."""

    loses: bool | None = None
    """Whether the next COMMIT is applied before it is lost; None: it is not lost."""

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor that loses the COMMIT."""
        return super().cursor(factory or _LosingCursor)


class _LosingCursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        connection = self.connection
        assert isinstance(connection, LosingConnection)
        applied, is_lost = connection.loses, sql == "COMMIT" and connection.loses is not None
        if not is_lost or applied:
            super().execute(sql, parameters)
        if is_lost:
            connection.loses = None
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return self


class SqliteRows(OwnRows):
    """A connection of the module ``sqlite3``."""

    refusal = sqlite3.IntegrityError

    def __init__(self, connection: LosingConnection) -> None:
        self.connection: LosingConnection = connection

    async def insert(self, key: str) -> None:
        """Insert a row."""
        if self.connection.isolation_level is None and not self.connection.in_transaction:
            self.connection.execute("BEGIN")
        self.connection.execute("INSERT INTO suite_rows (key) VALUES (?)", (key,))

    async def commit(self) -> None:
        """Commit without the store."""
        self.connection.commit()

    async def is_open(self) -> bool:
        """Return whether a transaction is open."""
        return self.connection.in_transaction

    async def refuse_commit(self) -> None:
        """Insert a part of a row that does not exist."""
        self.connection.execute(PART)

    async def lose_commit(self, applied: bool) -> None:
        """Report an I/O error for the next COMMIT; SQLite has no connection that could be lost."""
        self.connection.loses = applied


@contextmanager
def connected(path: Path, kind: str) -> Iterator[SqliteRows]:
    """Open a connection of a kind, for the length of a block; create the tables if they are absent."""
    with closing(sqlite3.connect(path)) as creating:
        for table in TABLES:
            creating.execute(table)
    with closing(sqlite3.connect(path, factory=LosingConnection)) as connection:
        if kind == AUTOCOMMIT:
            connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        yield SqliteRows(connection)


def committed(path: Path) -> frozenset[str]:
    """Return the keys of the committed rows; none if the tables are absent."""
    with closing(sqlite3.connect(path)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'suite_rows'").fetchall():
            return frozenset()
        return frozenset(key for (key,) in connection.execute(KEYS))
