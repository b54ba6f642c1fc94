"""
The framework on PostgreSQL, compared with asyncpg on open connections.

By default a server is started for the run, with every confirmed write on disk. If TXN_TEST_POSTGRESQL_URL names a
server, that one is used, and both sides have its durability.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from backend import Side
from measurement import opened, timed

if TYPE_CHECKING:
    import asyncpg


@dataclass(frozen=True)
class Postgresql:
    stack: ExitStack
    name: str = "postgresql"
    versions: dict[str, str] = field(default_factory=dict)
    databases: dict[str, str] = field(default_factory=dict)

    def config(self, database: str) -> dict[str, object]:
        return {"metadata": {"url": self.url(database)}, "ledger": {"url": self.url(database)}}

    def url(self, database: str) -> str:
        """Return the URL of a database, which the first call creates."""
        from txnframework_sql.testing.servers.databases import fresh_database

        if database not in self.databases:
            self.databases[database] = self.stack.enter_context(fresh_database())
        return self.databases[database]

    async def rows(self, database: str, statement: str) -> list[tuple[object, ...]]:
        """Run a statement on the framework's tables."""
        async with self.raw(database) as (connection,):
            return [tuple(row) for row in await connection.fetch(statement)]

    @asynccontextmanager
    async def raw(self, database: str, connections: int = 1) -> AsyncIterator[list[asyncpg.Connection]]:
        """Yield open connections of the driver alone, which prepare each statement once."""
        import asyncpg

        async with AsyncExitStack() as stack:
            held = []
            for _ in range(connections):
                held.append(await asyncpg.connect(self.url(database)))
                stack.push_async_callback(held[-1].close)
            yield held

    @asynccontextmanager
    async def raw_update(self) -> AsyncIterator[Side]:
        async with opened(self.config("raw")):  # creates the tables
            pass
        async with self.raw("raw") as (connection,):
            value, version = b"x" * 180, 0
            await connection.execute(
                "INSERT INTO records (path, partition, version, value) VALUES ('/txn/1', '/txn/1', 0, $1)", value
            )
            update = await connection.prepare(
                "UPDATE records SET value = $1, version = $2 WHERE path = $3 AND partition = $4 AND version = $5"
            )

            async def once() -> None:
                nonlocal version
                await update.fetch(value, version + 1, "/txn/1", "/txn/1", version)
                assert update.get_statusmsg() == "UPDATE 1"
                version += 1

            yield lambda: timed(once())


@contextmanager
def postgresql(_: Path) -> Iterator[Postgresql]:
    """Yield the backend; its databases are dropped at the end, and its own server ends with this process."""
    with ExitStack() as stack:
        backend = Postgresql(stack)
        ((version,),) = asyncio.run(backend.rows("version", "SHOW server_version"))
        backend.versions["postgresql"] = str(version)
        yield backend
