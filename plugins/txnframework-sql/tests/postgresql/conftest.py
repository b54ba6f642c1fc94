"""A server that tests may kill, with one database for each test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.testing.servers.postgresql import PostgresServer

sys.path.insert(0, str(Path(__file__).parent))  # for what several of these tests have in common

T = TypeVar("T")

PATIENCE_S = 120
_numbers = count()


class Stores:
    """The stores of one database, in real time; every opening is another client with its own connections."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.server = server
        self.database = database
        self.url = server.url_of(database)

    @asynccontextmanager
    async def metadata(self, url: str = "", **options: object) -> AsyncIterator[IMetadataStore]:
        chosen = MetadataOptions(share_connection=False, **options)  # type: ignore[arg-type]
        store = await open_metadata_store(url or self.url, SystemEnvironment(), chosen)
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def ledgers(self, url: str = "", **options: object) -> AsyncIterator[ILedgerStore]:
        chosen = LedgerOptions(share_connection=False, **options)  # type: ignore[arg-type]
        store = await open_ledger_store(url or self.url, SystemEnvironment(), chosen, None)
        try:
            yield store
        finally:
            await store.close()

    def disconnect_everybody(self) -> int:
        """Let the server end every connection to this database; return their number."""
        ended = self.server.run(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            f" WHERE datname = '{self.database}' AND pid <> pg_backend_pid()"
        )
        return int(ended)

    @staticmethod
    def run(test: Callable[[], Awaitable[T]]) -> T:
        """Run a test's coroutine function, with a timeout."""

        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE_S):
                return await test()

        return asyncio.run(bounded())


@pytest.fixture(scope="session")
def _server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def stores(_server: PostgresServer) -> Iterator[Stores]:
    """Return the stores of a separate database on a running server, which the test may kill."""
    with _database(_server) as stores:
        yield stores


@pytest.fixture
def other_stores(_server: PostgresServer) -> Iterator[Stores]:
    """Return the stores of another database on the same server."""
    with _database(_server) as stores:
        yield stores


@contextmanager
def _database(server: PostgresServer) -> Iterator[Stores]:
    if not server.is_running:
        server.start()
    name = f"test_{next(_numbers)}"
    server.create_database(name)
    yield Stores(server, name)
    if not server.is_running:
        server.start()
    server.run(f'DROP DATABASE "{name}" WITH (FORCE)')
