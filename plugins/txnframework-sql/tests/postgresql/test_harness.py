"""The harness over PostgreSQL: it loses exactly the replies that the suites ask for, and waits without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from txnframework.testing import VirtualEnvironment
from txnframework_sql.testing._database import Client, Database

LOST = (asyncpg.ConnectionDoesNotExistError, ConnectionError)
PATIENCE_S = 30


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    one = Database(tmp_path, VirtualEnvironment())
    try:
        yield one
    finally:
        one.drop()


@asynccontextmanager
async def connected(client: Client) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(client.url)
    try:
        yield connection
    finally:
        connection.terminate()


@asynccontextmanager
async def both(database: Database) -> AsyncIterator[tuple[Client, Any, Any]]:
    """Connect two clients; the first one is there to listen."""
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


async def numbers(client: Client) -> list[int]:
    async with connected(client) as connection:
        return [row["number"] for row in await connection.fetch("SELECT number FROM kept")]


def test_lost_reply_of_a_statement(database: Database) -> None:
    """It was done, also where it had to be prepared first; nothing else gets through until the client is restored."""

    async def test() -> None:
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

    run(test)


def test_lost_reply_of_a_transaction(database: Database) -> None:
    """Statements inside a transaction are answered; its commit is not, and was done."""

    async def test() -> None:
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

    run(test)


@pytest.mark.parametrize("is_in_view", [False, True])
def test_lost_read(database: Database, is_in_view: bool) -> None:
    """A read gets no answer, also where it stands in a transaction that only reads."""

    async def read(connection: Any) -> None:
        if is_in_view:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.fetch("SELECT 1")

    async def test() -> None:
        async with database.client() as client, connected(client) as connection:
            client.cut()
            with pytest.raises(LOST):
                await read(connection)

    run(test)


def test_notifications_are_heard(database: Database) -> None:
    """Once it has settled, who listens has heard what was notified of before, and nothing of the harness itself."""

    async def test() -> None:
        heard: list[str] = []
        async with both(database) as (_, listening, notifying):
            await listening.add_listener("some_channel", lambda *told: heard.append(told[-1]))
            await database.settle()
            for number in range(50):
                await notifying.execute("SELECT pg_notify('some_channel', $1)", str(number))
                await database.settle()
                assert heard == [str(told) for told in range(number + 1)]
            await listening.remove_listener("some_channel", print)

    run(test)


def test_what_was_asked_is_answered(database: Database) -> None:
    """Once it has settled, nothing that was asked is unanswered, nor what was asked upon an answer."""

    async def test() -> None:
        done: list[str] = []

        async def ask(client: Client) -> None:
            for name in ("connect", "one", "two"):
                async with connected(client) as connection:
                    await connection.execute("SELECT pg_sleep(0.02)")
                    done.append(name)

        async with database.client() as client:
            asking = asyncio.create_task(ask(client))
            await database.settle()
            assert done == ["connect", "one", "two"]
            await asking

    run(test)


def test_cut_off_while_notified(database: Database) -> None:
    """What is told to a client that is to be cut off is lost, and the client learns of it by the loss."""

    async def test() -> None:
        heard: list[str] = []
        async with both(database) as (one, listening, notifying):
            await listening.add_listener("some_channel", lambda *told: heard.append(told[-1]))
            one.cut()
            await notifying.execute("SELECT pg_notify('some_channel', 'lost')")
            await database.settle()
            assert heard == []
            assert listening.is_closed()

    run(test)


def test_found_by_the_directory(database: Database, tmp_path: Path) -> None:
    """Another process's harness of the same directory has the same database."""
    assert Database(tmp_path, VirtualEnvironment()).url_through("/a") == database.url_through("/a")
