"""Connections of an application to its tables in PostgreSQL, as the suite of ``ICoCommitStore`` uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import asyncpg

from txnframework.testing import OwnRows
from txnframework_sql.testing._sqlite_rows import KEYS, PART, TABLES

_EXISTS = "SELECT pg_catalog.to_regclass('suite_rows') IS NOT NULL"
_DROP = "DROP TABLE IF EXISTS suite_parts, suite_rows"


class BreakableConnection(Protocol):
    """A way to the database that a test can break."""

    @property
    def url(self) -> str:
        """The URL of the database by this way."""

    def cut(self) -> None:
        """Lose the next reply, then the connection."""

    def cut_now(self) -> None:
        """Lose the connection."""


class AsyncpgRows(OwnRows):
    """A connection of asyncpg, through a proxy of its own."""

    refusal = asyncpg.ForeignKeyViolationError

    def __init__(self, connection: Any, way: BreakableConnection) -> None:
        self.connection: Any = connection
        self._way = way

    async def insert(self, key: str) -> None:
        """Insert a row."""
        if not self.connection.is_in_transaction():
            await self.connection.execute("BEGIN")
        await self.connection.execute("INSERT INTO suite_rows (key) VALUES ($1)", key)

    async def commit(self) -> None:
        """Commit without the store."""
        await self.connection.execute("COMMIT")

    async def is_open(self) -> bool:
        """Return whether a transaction is open."""
        return bool(self.connection.is_in_transaction())

    async def refuse_commit(self) -> None:
        """Insert a part of a row that does not exist."""
        await self.connection.execute(PART)

    async def lose_commit(self, applied: bool) -> None:
        """Cut the connection before the reply to the COMMIT, or now."""
        if applied:
            self._way.cut()
        else:
            self._way.cut_now()


@asynccontextmanager
async def connected(url: str, way: BreakableConnection) -> AsyncIterator[AsyncpgRows]:
    """Connect for the length of a block, through a breakable way; create the tables at ``url`` if absent."""
    async with _direct(url) as creating:
        for table in TABLES:
            await creating.execute(table)
    connection = await asyncpg.connect(way.url)
    try:
        yield AsyncpgRows(connection, way)
    finally:
        connection.terminate()


async def committed(url: str) -> frozenset[str]:
    """Return the keys of the committed rows; none if the tables are absent."""
    async with _direct(url) as connection:
        if not await connection.fetchval(_EXISTS):
            return frozenset()
        return frozenset(row["key"] for row in await connection.fetch(KEYS))


async def remove_tables(url: str) -> None:
    """Drop the tables: an emptied database of the harness has only those of the stores."""
    async with _direct(url) as connection:
        await connection.execute(_DROP)


@asynccontextmanager
async def _direct(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()
