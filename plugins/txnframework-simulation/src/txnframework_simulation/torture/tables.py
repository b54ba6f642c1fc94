"""Connections of an application to its table in the database of the metadata store, for the processes of a run."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from txnframework.errors import Unavailable
from txnframework_simulation.workloads.own_rows import TABLE, Connect, RowsConnection
from txnframework_simulation.workloads.recorded_client import RecordedClient

if TYPE_CHECKING:
    import asyncpg

# The common words of both databases. The framework's tables have other names.
_CREATE = f"CREATE TABLE {TABLE} (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_SCAN = f"SELECT key, value FROM {TABLE}"  # noqa: S608 - a name of our own
# Waiting blocks the event loop, in which the other clients of the process run.
_LOCK_TIMEOUT_S = 0.5
_COMMAND_TIMEOUT_S = 30


def has_tables(metadata: str) -> bool:
    """Return whether applications can have tables in the database of a metadata store."""
    return urlsplit(metadata).scheme in ("sqlite", "postgresql")


async def create_table(metadata: str) -> None:
    """Create the table of the application."""
    if urlsplit(metadata).scheme == "sqlite":
        with closing(sqlite3.connect(_path(metadata))) as connection:
            connection.execute(_CREATE)
        return
    driver = await _connected(metadata)
    try:
        await driver.execute(_CREATE)
    finally:
        await driver.close()


def connect_to(metadata: str) -> Connect:
    """Return what opens a connection to the database of a metadata store."""

    async def connect(_: RecordedClient) -> RowsConnection:
        if urlsplit(metadata).scheme == "sqlite":
            return _SqliteRows(sqlite3.connect(_path(metadata), timeout=_LOCK_TIMEOUT_S))
        return _PostgresqlRows(await _connected(metadata))

    return connect


class _SqliteRows:
    """A connection of the module sqlite3."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, driver: sqlite3.Connection) -> None:
        self.given = driver

    async def put(self, table: str, key: str, value: bytes) -> None:
        """Insert a row."""
        self.given.execute(f"INSERT INTO {table} VALUES (?, ?)", (key, value.decode()))  # noqa: S608

    async def scan(self, table: str) -> dict[str, bytes]:
        """Return the committed rows."""
        assert table == TABLE
        return {key: value.encode() for key, value in self.given.execute(_SCAN)}

    async def close(self) -> None:
        """Roll back and close."""
        self.given.close()


class _PostgresqlRows:
    """A connection of asyncpg."""

    def __init__(self, driver: asyncpg.Connection[Any]) -> None:
        import asyncpg

        self.given = driver
        self.errors: tuple[type[Exception], ...] = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)

    async def put(self, table: str, key: str, value: bytes) -> None:
        """Insert a row."""
        await self.given.execute(f"INSERT INTO {table} VALUES ($1, $2)", key, value.decode())  # noqa: S608

    async def scan(self, table: str) -> dict[str, bytes]:
        """Return the committed rows."""
        assert table == TABLE
        return {row["key"]: row["value"].encode() for row in await self.given.fetch(_SCAN)}

    async def close(self) -> None:
        """Close without a goodbye, which a cut connection would wait for; the server rolls back."""
        self.given.terminate()


def _path(metadata: str) -> str:
    return metadata.removeprefix("sqlite:///")


async def _connected(metadata: str) -> asyncpg.Connection[Any]:
    import asyncpg

    try:
        return await asyncpg.connect(metadata, command_timeout=_COMMAND_TIMEOUT_S)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise Unavailable(f"the application cannot connect: {type(error).__name__}") from error
