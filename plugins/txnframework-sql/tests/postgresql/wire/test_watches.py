"""Watches of stores: own commits wake at once, those of others by notification, and none is missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from txnframework.errors import Closed
from txnframework.interfaces import IMetadataStore, IValueWatch, IWatch
from txnframework.model import Expect, IndexEntry, IndexRange, Key, KeyRange, Put
from txnframework.testing import VirtualEnvironment
from txnframework.testing.servers.proxy import Proxy, Side
from txnframework_sql import MetadataOptions, open_metadata_store
from txnframework_sql.testing.servers.databases import fresh_database

PUT = Put(Key("/a/x"), b"1", Expect.ANY, (IndexEntry("by", b"k"),))
OTHER = Put(Key("/c/x"), b"1", Expect.ANY, (IndexEntry("by", b"z"),))
TARGETS = [Key("/a/x"), KeyRange("/a/", "/a0"), IndexRange("by", b"k", b"l")]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[IMetadataStore]:
    store = await open_metadata_store(url, VirtualEnvironment(), MetadataOptions(share_connection=False))
    try:
        yield store
    finally:
        await store.close()


async def woken(watch: IWatch) -> None:
    async with asyncio.timeout(60):
        await watch.changed()


async def is_asleep(watch: IWatch) -> bool:
    """Return whether a watch is still waiting after one round of the loop."""
    waiting = asyncio.ensure_future(watch.changed())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    is_waiting = not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return is_waiting


@pytest.fixture(scope="module")
def url() -> Any:
    """Return a database for the tests of this module."""
    with fresh_database() as one:
        yield one


@pytest.mark.parametrize("target", TARGETS)
async def test_what_others_commit(wire: Any, url: str, target: Key | KeyRange | IndexRange) -> None:
    """A watch wakes for the commits of another opening that concern it, and for no others."""
    async with opened(url) as mine, opened(url) as others:
        watch = await mine.watch(target)
        everything = await mine.watch(KeyRange("/", "0"))
        await others.put(OTHER)
        await woken(everything)
        assert await is_asleep(watch)
        await others.put(PUT)
        await woken(watch)
        await woken(everything)
        # Its removal from the index concerns watches of its former place.
        await others.put(Put(PUT.key, b"2", Expect.ANY))
        await woken(watch)


async def test_a_watch_brings_nothing_along(wire: Any, url: str) -> None:
    """A notification with a record's or a ledger's content only makes watchers read again; the content is ignored."""
    async with opened(url) as mine, opened(url) as others:
        key = Key("/f/1")
        await others.put(Put(key, b"true", Expect.ABSENT, (IndexEntry("by", b"k"),)))
        watch = await mine.watch(key)
        raw = await asyncpg.connect(url)
        channel = mine.database.pool.channel  # type: ignore[attr-defined]
        for forged in ('[["/f/1",null,[["by","6b"]],[["by","6c"]],"false"]]', '[["/f/1",null]]', "*"):
            while not await is_asleep(watch):
                pass
            await raw.execute("SELECT pg_notify($1, $2)", channel, forged)
            await woken(watch)
            assert not IValueWatch.providedBy(watch)
            found = await mine.get(key)
            assert found is not None
            assert found.value == b"true"
        await raw.close()


async def test_a_commit_that_nobody_notifies(wire: Any, url: str) -> None:
    """A commit of a process that ended before it notified others is seen within three heartbeats."""
    environment, options = VirtualEnvironment(), MetadataOptions(share_connection=False)
    store = await open_metadata_store(url, environment, options)
    raw = await asyncpg.connect(url)
    await raw.execute("INSERT INTO records (path, partition, version, value) VALUES ('/g/1', '/g/1', 1, 'a')")
    watch = await store.watch(Key("/g/1"))
    while not await is_asleep(watch):
        pass
    begun_ms = environment.monotonic_ms()
    await raw.execute("UPDATE records SET version = 2, value = 'b' WHERE path = '/g/1'")
    waiting = asyncio.ensure_future(watch.changed())
    while not waiting.done():
        await environment.advance(100)
        await asyncio.sleep(0.001)
    assert environment.monotonic_ms() - begun_ms <= 4 * options.heartbeat_ms
    await raw.close()
    await store.close()


async def test_own_commits_do_not_wait_for_the_server(wire: Any, url: str) -> None:
    """A write wakes the watches of its own store by the time it is confirmed, without a notification."""
    async with Proxy(wire.address) as proxy:
        through = wire.url_with(address=proxy.address, path=f"/{url.rpartition('/')[2]}")
        async with opened(through) as store:
            watch = await store.watch(PUT.key)
            listener = store.database.pool.listener  # type: ignore[attr-defined]
            listener._driver.terminate()
            listener._connect = asyncio.Event().wait
            await store.put(PUT)
            await asyncio.sleep(0)
            assert not await is_asleep(watch)


async def test_a_commit_that_nobody_confirmed(wire: Any, url: str) -> None:
    """A write that took effect without a reply wakes the watches of its store."""
    async with Proxy(wire.address) as proxy:
        through = wire.url_with(address=proxy.address, path=f"/{url.rpartition('/')[2]}")
        async with opened(through) as store, opened(url) as others:
            # From here on the statement is one request.
            await store.put(OTHER)
            watch = await store.watch(PUT.key)
            proxy.drop(Side.SERVER)
            writing = asyncio.create_task(store.put(Put(PUT.key, b"lost", Expect.ANY)))
            while (found := await others.get(PUT.key)) is None or found.value != b"lost":
                pass
            proxy.restore()
            proxy.reset_connections()
            await asyncio.gather(writing, return_exceptions=True)
            await woken(watch)


async def test_closing_with_a_watch(wire: Any, url: str) -> None:
    """Closing the store ends its watches, and no task remains."""
    async with opened(url) as store:
        watch = await store.watch(PUT.key)
        waiting = asyncio.create_task(watch.changed())
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await store.watch(PUT.key)
        assert {task for task in asyncio.all_tasks() if "txnframework-sql" in task.get_name()} == set()
