"""Handlers that write rows, over many segments at the same time: each message counts exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from application_connections import asked
from one_step import orders_of, shop
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from txnframework import Message, PlannedSend
from txnframework.errors import InvalidInput

ORDERS, CONCURRENCY, SEGMENTS = 200, 16, 4


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[tuple[Any, Callable[[Any, str], Any]]]:
    async with asyncpg.create_pool(url, min_size=1, max_size=CONCURRENCY) as pool:
        yield pool.acquire, lambda connection, value: connection.execute("INSERT INTO mine (text) VALUES ($1)", value)


@asynccontextmanager
async def _sqlalchemy(url: str) -> AsyncIterator[tuple[Any, Callable[[Any, str], Any]]]:
    engine = create_async_engine(urlsplit(url)._replace(scheme="postgresql+asyncpg").geturl(), pool_size=CONCURRENCY)
    insert = text("INSERT INTO mine (text) VALUES (:value)")
    try:
        yield (
            async_sessionmaker(engine, class_=AsyncSession),
            lambda session, value: session.execute(insert, {"value": value}),
        )
    finally:
        await engine.dispose()


@pytest.mark.parametrize("pool", [_asyncpg, _sqlalchemy], ids=["asyncpg", "AsyncSession"])
async def test_exactly_once(database: str, pool: Any) -> None:
    """Rows and invoices are those of all orders, each exactly once."""
    await asked(database, "TRUNCATE mine CASCADE")
    async with (
        shop(database, pool.__name__, segments=SEGMENTS) as opened,
        pool(database) as (connect, insert),
    ):
        await opened.orders.send_many([b"%d" % number for number in range(ORDERS)])
        billed: set[bytes] = set()
        all_billed = asyncio.Event()

        async def bill(order: Message, connection: Any) -> PlannedSend:
            assert order.value is not None
            await insert(connection, order.value.decode())
            billed.add(order.value)
            if len(billed) == ORDERS:
                all_billed.set()
            return opened.invoices.outgoing(order.value, key=order.value)

        running = asyncio.ensure_future(opened.todo.run(bill, commit_with=connect, concurrency=CONCURRENCY))
        await all_billed.wait()
        while len(await opened.client.peek(orders_of(opened.name), "billing", 1)):
            assert not running.done()
        opened.todo.stop()
        await running
        expected = sorted(str(number) for number in range(ORDERS))
        assert sorted(await asked(database, "SELECT array_agg(text) FROM mine")) == expected
        assert await opened.counts() == (ORDERS, 0)


async def test_connections_that_cannot_be_used(database: str) -> None:
    """A pool whose connections read snapshots ends the run in one sentence; no message is at fault."""
    settings = {"default_transaction_isolation": "repeatable read"}
    async with (
        shop(database, "snapshots") as opened,
        asyncpg.create_pool(database, min_size=1, max_size=1, server_settings=settings) as pool,
    ):
        await opened.orders.send(b"1")

        async def bill(_: Message, connection: Any) -> None:
            await connection.execute("SELECT 1")

        with pytest.raises(InvalidInput, match=r"cannot be committed: .* reads a snapshot.* use READ COMMITTED"):
            await opened.todo.run(bill, commit_with=pool.acquire)
        assert (await opened.received()).redelivery_count == 0
