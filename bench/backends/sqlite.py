"""The framework on SQLite files, compared with the standard library's driver."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from backend import Side
from measurement import opened, timed

FULL_DURABILITY = ("PRAGMA synchronous = FULL", "PRAGMA wal_autocheckpoint = 4000", "PRAGMA cache_size = -16384")
"""The settings of the SQL plugin's own connection, for the raw side; the file is already in WAL mode."""


@dataclass(frozen=True)
class Sqlite:
    directory: Path
    name: str = "sqlite"
    versions: dict[str, str] = field(default_factory=lambda: {"sqlite": sqlite3.sqlite_version})

    def config(self, database: str) -> dict[str, object]:
        url = f"sqlite:///{self._path(database)}"
        return {"metadata": {"url": url}, "ledger": {"url": url}}

    async def rows(self, database: str, statement: str) -> list[tuple[object, ...]]:
        """Run a statement on the framework's tables."""
        with closing(sqlite3.connect(self._path(database))) as connection, connection:
            return connection.execute(statement).fetchall()

    @contextmanager
    def raw(self, database: str) -> Iterator[sqlite3.Connection]:
        """Yield a connection of the driver alone, in autocommit, as durable as the plugin."""
        with closing(
            sqlite3.connect(self._path(database), isolation_level=None, check_same_thread=False)
        ) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            for pragma in FULL_DURABILITY:
                connection.execute(pragma)
            yield connection

    @asynccontextmanager
    async def raw_update(self) -> AsyncIterator[Side]:
        async with opened(self.config("raw")):  # creates the tables
            pass
        with self.raw("raw") as connection:
            value, version = b"x" * 180, 0
            connection.execute("INSERT INTO records VALUES ('/txn/1', '/txn/1', 0, NULL, ?)", (value,))

            async def once() -> None:
                nonlocal version
                cursor = connection.execute(
                    "UPDATE records SET value = ?, version = ? WHERE path = ? AND partition = ? AND version = ?",
                    (value, version + 1, "/txn/1", "/txn/1", version),
                )
                assert cursor.rowcount == 1
                version += 1

            yield lambda: timed(once())

    def _path(self, database: str) -> Path:
        return self.directory / f"{database}.db"


@contextmanager
def sqlite(directory: Path) -> Iterator[Sqlite]:
    """Yield the backend, whose databases are in a directory."""
    yield Sqlite(directory)
