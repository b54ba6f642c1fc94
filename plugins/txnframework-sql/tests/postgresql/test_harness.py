"""The harness over PostgreSQL loses exactly the requested replies, and waits without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from txnframework.testing import VirtualEnvironment
from txnframework_sql.testing.postgresql import HarnessClient, HarnessDatabase

LOST = (asyncpg.ConnectionDoesNotExistError, ConnectionError)
PATIENCE_S = 60


@pytest.fixture
def database(tmp_path: Path) -> Iterator[HarnessDatabase]:
    one = HarnessDatabase(tmp_path, VirtualEnvironment())
    try:
        yield one
    finally:
        one.drop()


@asynccontextmanager
async def connected(client: HarnessClient) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(client.url)
    try:
        yield connection
    finally:
        connection.terminate()


@asynccontextmanager
async def both(database: HarnessDatabase) -> AsyncIterator[tuple[HarnessClient, Any, Any]]:
    """Connect two clients; the first one listens."""
    async with (
        database.client() as one,
        database.client() as two,
        connected(one) as listening,
        connected(two) as notifying,
    ):
        yield one, listening, notifying


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


async def numbers(client: HarnessClient) -> list[int]:
    async with connected(client) as connection:
        return [row["number"] for row in await connection.fetch("SELECT number FROM kept")]


async def test_lost_reply_of_a_statement(database: HarnessDatabase) -> None:
    """The statement took effect, also if it was prepared first. Nothing else passes until the client is restored."""
    async with database.client() as client, database.client() as other:
        async with connected(client) as connection:
            await connection.execute("CREATE TABLE kept (number int)")
            client.cut()
            with pytest.raises(LOST):
                await connection.fetch("INSERT INTO kept VALUES ($1)", 7)
            assert await numbers(other) == [7]
        with pytest.raises(LOST):
            await asyncpg.connect(client.url)
        await client.restore()
        assert await numbers(client) == [7]


async def test_lost_reply_of_a_transaction(database: HarnessDatabase) -> None:
    """Statements inside a transaction get replies; its commit takes effect without one."""
    async with database.client() as client, connected(client) as connection:
        await connection.execute("CREATE TABLE kept (number int)")
        client.cut()
        transaction = connection.transaction()
        await transaction.start()
        assert await connection.fetchval("INSERT INTO kept VALUES ($1) RETURNING number", 7) == 7
        with pytest.raises(LOST):
            await transaction.commit()
        await client.restore()
        assert await numbers(client) == [7]


@pytest.mark.parametrize("is_in_view", [False, True])
async def test_lost_read(database: HarnessDatabase, is_in_view: bool) -> None:
    """A read gets no reply, also inside a read-only transaction."""

    async def read(connection: Any) -> None:
        if is_in_view:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.fetch("SELECT 1")

    async with database.client() as client, connected(client) as connection:
        client.cut()
        with pytest.raises(LOST):
            await read(connection)


async def test_notifications_are_heard(database: HarnessDatabase) -> None:
    """After ``settle``, listeners have received all earlier notifications, and none of the harness itself."""
    heard: list[str] = []
    async with both(database) as (_, listening, notifying):
        await listening.add_listener("some_channel", lambda *told: heard.append(told[-1]))
        await database.settle()
        for number in range(50):
            await notifying.execute("SELECT pg_notify('some_channel', $1)", str(number))
            await database.settle()
            assert heard == [str(told) for told in range(number + 1)]
        await listening.remove_listener("some_channel", print)


async def test_what_was_asked_is_answered(database: HarnessDatabase) -> None:
    """After ``settle``, every request has its reply, including requests that replies caused."""
    done: list[str] = []

    async def ask(client: HarnessClient) -> None:
        for name in ("connect", "one", "two"):
            async with connected(client) as connection:
                await connection.execute("SELECT pg_sleep(0.02)")
                done.append(name)

    async with database.client() as client:
        asking = asyncio.create_task(ask(client))
        await database.settle()
        assert done == ["connect", "one", "two"]
        await asking


async def test_cut_off_while_notified(database: HarnessDatabase) -> None:
    """
    A notification to a client that is about to be cut off is lost, and the client notices the loss of its connection.
    """
    heard: list[str] = []
    async with both(database) as (one, listening, notifying):
        await listening.add_listener("some_channel", lambda *told: heard.append(told[-1]))
        one.cut()
        await notifying.execute("SELECT pg_notify('some_channel', 'lost')")
        await database.settle()
        assert heard == []
        assert listening.is_closed()


def test_found_by_the_directory(database: HarnessDatabase, tmp_path: Path) -> None:
    """Another process's harness with the same directory uses the same database."""
    assert HarnessDatabase(tmp_path, VirtualEnvironment()).url_through("/a") == database.url_through("/a")
