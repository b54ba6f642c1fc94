"""The databases that the harness reuses between tests look like new ones."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from txnframework.environment import SystemEnvironment
from txnframework.model import Append, Expect, Key, Put, PutSequential, Step
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.testing.servers import databases
from txnframework_sql.testing.servers.databases import clean_database, fresh_database, give_back, run, take_database

NAMES = """
SELECT quote_ident(relname) FROM pg_class WHERE relkind IN ('r', 'S') AND relnamespace = 'public'::regnamespace
"""


@pytest.fixture(autouse=True)
def _none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_left", [])


async def used(url: str) -> str:
    """Open both stores, and write to every table; return the identity."""
    environment = SystemEnvironment()
    store = await open_metadata_store(url, environment, MetadataOptions())
    ledgers = await open_ledger_store(url, environment, LedgerOptions(), store.identity)
    await store.put(Put(Key("/a"), b"one", Expect.ABSENT))
    await store.apply(Step(puts=(PutSequential(Key("/b/"), b"two"),)))
    await store.acquire_lease("mine", "me")
    await (await ledgers.create("one")).append((Append(b"one"),), None)
    await ledgers.close()
    await store.abandon()
    return store.identity


async def opened(url: str) -> str:
    """Open a store without writing; return the identity."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    await store.close()
    return store.identity


async def content(url: str, identity: str) -> dict[str, str]:
    """Return the content of every table and sequence, without the identity and the channel's token."""
    connection = await asyncpg.connect(url)
    try:
        token = await connection.fetchval("SELECT value FROM store WHERE name = 'channel'")
        found = {}
        for (name,) in await connection.fetch(NAMES):
            rows = await connection.fetch(f"SELECT * FROM {name}")
            # How many numbers of a sequence the log is ahead says nothing.
            values = [{column: value for column, value in row.items() if column != "log_cnt"} for row in rows]
            found[name] = str(values).replace(identity, "").replace(token, "")
        return found
    finally:
        await connection.close()


async def test_nothing_is_left() -> None:
    """Rows and counters are reset; identity and channel are new."""
    with fresh_database() as url:
        new = await content(url, await opened(url))
    url = take_database()
    before = await used(url)
    assert await content(url, before) != new
    give_back(url)
    with clean_database() as url:
        assert databases._left == []
        after = await opened(url)
        assert after != before
        assert await content(url, after) == new


async def test_whoever_was_left_behind_finds_none() -> None:
    """
    Connected clients are disconnected and cannot reconnect, so that a forgotten client does not disturb the next test.
    """
    url = take_database()
    await opened(url)
    forgotten = await asyncpg.connect(url)
    give_back(url)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await forgotten.execute("SELECT 1")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(url)


@pytest.mark.parametrize("is_opened", [True, False])
def test_with_tables_of_a_test(is_opened: bool) -> None:
    """A database with a test's own tables, or without ours, is not reused."""
    with clean_database() as url:
        if is_opened:
            asyncio.run(opened(url))
            run(url, "CREATE TABLE mine ()")
    assert databases._left == []
