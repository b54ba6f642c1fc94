"""Reads go on while a write waits for the lock of another connection."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import ColumnClause, column, select, table

from txnframework.errors import Unavailable
from txnframework.testing import run_ready
from txnframework_sql import MetadataOptions
from txnframework_sql.sqlite import locate
from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.steps.statements import Row, Steps, new_number, rows

PATIENCE_S = 60
WHAT: ColumnClause[str] = column("what")
ORDERS = select(WHAT).select_from(table("orders"))


async def opened(
    url: str, lock_timeout_ms: int = PATIENCE_S * 1_000, kind: type[SqliteConnection] = SqliteConnection
) -> SqliteDatabase:
    """Open the database."""
    return await SqliteDatabase.open(locate(url), MetadataOptions(lock_timeout_ms=lock_timeout_ms), "identity", kind)


@contextmanager
def locked(url: str) -> Iterator[sqlite3.Connection]:
    """Return a connection of an application, in a transaction that has written."""
    with closing(sqlite3.connect(locate(url).path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE orders (what TEXT)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO orders VALUES ('apples')")
        yield connection


async def begun(database: SqliteDatabase, *works: Callable[[], Steps[object]]) -> list[asyncio.Task[object]]:
    """Start writes together, and return them when they wait for the lock."""
    running = [asyncio.create_task(database.write(work)) for work in works]
    # The first of these is executed before the writes try to begin.
    for _ in range(2):
        await database.read(read)
    return running


def read() -> Steps[list[Row]]:
    """Read the orders."""
    return rows(ORDERS)


async def test_read_while_a_write_waits(url: str) -> None:
    """Reads are answered while a write waits for another connection; they see what is committed, also by that one."""
    database = await opened(url)
    with locked(url) as other:
        async with asyncio.timeout(PATIENCE_S):
            (writing,) = await begun(database, new_number)
            assert await database.read(read) == []
            assert not writing.done()
            other.execute("COMMIT")
            assert await database.read(read) == [("apples",)]
            await writing
    await database.close()


async def test_a_write_that_waits_too_long(url: str) -> None:
    """A write fails after its timeout with its usual error, also while reads arrive all the time; then writes work."""
    database = await opened(url, lock_timeout_ms=50)
    with locked(url) as other:
        (writing,) = await begun(database, new_number)
        while not writing.done():
            assert await database.read(read) == []
        with pytest.raises(Unavailable, match=r"was locked by other writers \(database is locked\)"):
            await writing
        other.execute("ROLLBACK")
        await database.write(new_number)
    await database.close()


async def test_reads_do_not_hold_up_a_write(url: str) -> None:
    """A write gets the lock as soon as it is free, although reads wait all the time."""
    database = await opened(url)
    with locked(url) as other:
        (writing,) = await begun(database, new_number)

        async def read_on() -> None:
            while not writing.done():
                await database.read(read)

        reading = [asyncio.create_task(read_on()) for _ in range(8)]
        await run_ready()
        other.execute("COMMIT")
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(writing, *reading)
    await database.close()


async def test_attempts_between_long_reads(url: str) -> None:
    """After a read that takes long, the lock is tried again before the next read."""

    class Counting(SqliteConnection):
        attempts = 0

        def _begins_to_write(self) -> bool:
            type(self).attempts += 1
            return super()._begins_to_write()

    seen: list[int] = []

    def read_long() -> Steps[None]:
        seen.append(Counting.attempts)
        until_s = time.monotonic() + 0.02  # longer than the longest pause between two attempts
        while time.monotonic() < until_s:
            pass
        yield from ()

    database = await opened(url, kind=Counting)
    with locked(url) as other:
        (writing,) = await begun(database, new_number)
        await asyncio.gather(*(database.read(read_long) for _ in range(3)))
        assert len(set(seen)) == 3
        other.execute("COMMIT")
        await writing
    await database.close()


async def test_order_of_writes(url: str) -> None:
    """Writes keep their order while one waits, and an urgent one still waits for one job only."""
    order: list[str] = []

    def noted(name: str) -> Callable[[], Steps[None]]:
        def work() -> Steps[None]:
            order.append(name)
            yield from ()

        return work

    database = await opened(url)
    with locked(url) as other:
        writing = await begun(database, noted("first"), noted("second"))
        writing += await begun(database, noted("third"), noted("fourth"))
        urgent = asyncio.create_task(database.write_urgently(noted("urgent")))
        await begun(database)
        assert order == []
        other.execute("COMMIT")
        await asyncio.gather(urgent, *writing)
    assert order == ["first", "urgent", "second", "third", "fourth"]
    await database.close()


async def test_closing_while_a_write_waits(url: str) -> None:
    """A store that is closed answers the write that waits, and all reads before the closing."""
    database = await opened(url)
    with locked(url) as other:
        (writing,) = await begun(database, new_number)
        reading = [asyncio.create_task(database.read(read)) for _ in range(3)]
        await run_ready()
        closing_ = asyncio.create_task(database.close())
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*reading) == [[]] * 3
            assert not writing.done()
            other.execute("COMMIT")
            await asyncio.gather(writing, closing_)
