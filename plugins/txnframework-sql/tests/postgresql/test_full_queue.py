"""PostgreSQL keeps notifications until all listeners have received them, in a queue of limited size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import asyncpg
import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import Unavailable
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


def test_writes_are_refused_until_there_is_room(url: str) -> None:
    """With a full queue a write raises Unavailable with the reason, and changes nothing."""

    async def test() -> None:
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
                with pytest.raises(Unavailable, match="full notification queue"):
                    await store.put(Put(KEY, b"one", Expect.ABSENT))
                assert await store.get(KEY) is None
            # It takes what waits for it before it answers; to look for room makes it.
            await listener.execute("SELECT 1")
            assert await writer.fetchval("SELECT pg_notification_queue_usage()") == 0
            await store.put(Put(KEY, b"one", Expect.ABSENT))
        await writer.close()
        await listener.close()
        await store.close()

    asyncio.run(test())
