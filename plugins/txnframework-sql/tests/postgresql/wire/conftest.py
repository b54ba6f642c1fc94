"""A separate database, connections to it, and a proxy in between; every test has a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from txnframework.environment import Environment, SystemEnvironment
from txnframework.testing.servers.proxy import Proxy
from txnframework_sql._options import PostgresqlOptions
from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._pool import Pool
from txnframework_sql.postgresql._server import locate
from txnframework_sql.testing.servers.databases import fresh_database

PATIENCE_S = 60
CHANNEL = "txnframework_wire"
_SOON_S = 0.05


@dataclass
class Wire:
    """The operations of a test on its database."""

    url: str

    @property
    def name(self) -> str:
        """The name of the database."""
        return urlsplit(self.url).path[1:]

    @property
    def user(self) -> str:
        """The login."""
        return urlsplit(self.url).username or ""

    @property
    def password(self) -> str:
        """The password in the URL."""
        return urlsplit(self.url).password or ""

    def url_with(
        self, *, address: tuple[str, int] | None = None, login: str = "", path: str = "", query: str = ""
    ) -> str:
        """Return the URL with some parts replaced."""
        split = urlsplit(self.url)
        own_login, _, place = split.netloc.rpartition("@")
        if address is not None:
            place = f"{address[0]}:{address[1]}"
        return split._replace(netloc=f"{login or own_login}@{place}", path=path or split.path, query=query).geturl()

    @property
    def address(self) -> tuple[str, int]:
        """The address of the server."""
        split = urlsplit(self.url)
        return split.hostname or "localhost", split.port or 5432

    @asynccontextmanager
    async def connected(
        self, url: str = "", environment: Environment | None = None, **options: Any
    ) -> AsyncIterator[Pool]:
        """Open a pool for a block."""
        connections = Pool(locate(url or self.url), environment or SystemEnvironment(), PostgresqlOptions(**options))
        connections.notify_on(CHANNEL)
        try:
            yield connections
        finally:
            await connections.close()

    @asynccontextmanager
    async def proxied(
        self, environment: Environment | None = None, **options: Any
    ) -> AsyncIterator[tuple[Pool, Proxy]]:
        """Open a pool for a block, through a proxy."""
        async with (
            Proxy(self.address) as proxy,
            self.connected(self.url_with(address=proxy.address), environment, **options) as connections,
        ):
            yield connections, proxy

    async def ask(self, text: str, *arguments: object) -> Any:
        """Return the first value that a statement finds, over a separate connection."""
        async with self.connected(connections_max=1) as connections, connections.lend() as connection:
            rows = await connection.write(text, *arguments)
            return rows[0][0] if rows else None

    @staticmethod
    async def until(is_so: Callable[[], bool]) -> None:
        """Run the loop until a condition is true; external events take a moment of real time."""
        while not is_so():  # noqa: ASYNC110 - sockets set no event
            await asyncio.sleep(0.001)

    @staticmethod
    def miss_replies_soon(connection: Connection) -> None:
        """
        Shorten the reply timeout of a connection, which had the options' timeout until now.

        So a test waits only a moment for a missing reply, and a slow server has enough time before.
        """
        assert connection.reply_timeout_s == PostgresqlOptions().reply_timeout_s
        connection.reply_timeout_s = _SOON_S

    @staticmethod
    def run(test: Callable[[], Awaitable[None]]) -> None:
        """Run a test's coroutine function."""

        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test()

        asyncio.run(bounded())


@pytest.fixture(scope="session")
def _url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


@pytest.fixture
def wire(_url: str) -> Wire:
    """Return a clean database: to create one for each of these tests would take longer than the tests."""
    one = Wire(_url)

    async def clear() -> None:
        writable = one.url_with(query="options=-c%20default_transaction_read_only%3Doff")
        async with one.connected(writable) as connections, connections.lend() as connection:
            await connection.write(f"ALTER DATABASE {one.name} RESET ALL")
            await connection.write("DROP TABLE IF EXISTS public.kept")

    one.run(clear)
    return one
