"""PostgreSQL keeps notifications until all listeners have received them, in a queue of limited size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import asyncpg
import pytest

from txnframework.environment import SystemEnvironment
from txnframework.model import Expect, Key, Put
from txnframework_sql import MetadataOptions, open_metadata_store
from txnframework_sql.testing.servers.postgresql import PostgresServer

KEY = Key("/a")
FILL = "SELECT count(pg_notify('other', repeat('x', 7000) || number)) FROM generate_series(1, 10) number"


@pytest.fixture
def url() -> Iterator[str]:
    """Return a database whose server has the smallest possible queue."""
    with PostgresServer({"max_notify_queue_pages": "64"}) as server:
        yield server.create_database("stores")


async def test_writes_go_on_while_it_is_full(url: str) -> None:
    """With a full queue a write succeeds, and others are notified once there is room."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    listener = await asyncpg.connect(url)
    writer = await asyncpg.connect(url)
    async with asyncio.timeout(60):
        await listener.execute(f"LISTEN {store.database.pool.channel}")
        async with listener.transaction():
            await listener.execute("SELECT 1")
            with suppress(asyncpg.ProgramLimitExceededError):
                while True:
                    await writer.execute(FILL)
            await store.put(Put(KEY, b"one", Expect.ABSENT))
            assert await store.get(KEY) is not None
        heard = asyncio.Event()
        await listener.add_listener(store.database.pool.channel, lambda *_: heard.set())
        # It takes what waits for it before it answers; to look for room makes it.
        while not heard.is_set():
            await listener.execute("SELECT 1")
            await writer.fetchval("SELECT pg_notification_queue_usage()")
    await writer.close()
    await listener.close()
    await store.close()
