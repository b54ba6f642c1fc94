"""Event loops, threads and forks that use one file."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import Closed, InvalidInput
from txnframework.model import Expect, Key, Put
from txnframework.testing import run_ready
from txnframework_sql import LedgerOptions, MetadataOptions, SqlMetadataStore, open_ledger_store, open_metadata_store
from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.sqlite._location import Location
from txnframework_sql.steps.statements import Steps

PATIENCE_S = 60


async def opened(url: str, options: MetadataOptions | None = None) -> SqlMetadataStore:
    """Open the records."""
    return await open_metadata_store(url, SystemEnvironment(), options or MetadataOptions())


async def put(store: SqlMetadataStore, path: str) -> None:
    """Create a record."""
    await store.put(Put(Key(path), b"", Expect.ABSENT))


def wait_for(gate: threading.Event) -> Steps[None]:
    """Block the thread."""
    gate.wait()
    yield from ()


def threads() -> int:
    """Return the number of running database threads."""
    return sum(thread.name == "txnframework-sql" for thread in threading.enumerate())


async def test_stores_of_one_file_share_a_thread(url: str) -> None:
    """Stores of a process on one file share a connection until the last one is closed, unless configured otherwise."""
    first = await opened(url)
    ledgers = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(), None)
    assert threads() == 1
    alone = await opened(url, MetadataOptions(share_connection=False))
    assert threads() == 2
    await alone.close()
    await first.close()
    assert threads() == 1
    await ledgers.create("a")
    await ledgers.close()
    assert threads() == 0
    again = await opened(url)
    await again.close()


def test_another_event_loop(url: str) -> None:
    """A store of another event loop raises Closed, while that loop runs and after it ended, and stays usable."""

    async def main() -> SqlMetadataStore:
        store = await opened(url)
        with pytest.raises(Closed, match="belongs to the event loop that opened it; open it again in this one"):
            await asyncio.to_thread(asyncio.run, put(store, "/elsewhere"))
        await put(store, "/here")
        assert await store.get(Key("/elsewhere")) is None
        return store

    with asyncio.Runner() as runner:
        store = runner.run(main())
        with pytest.raises(Closed, match="belongs to the event loop that opened it"):
            asyncio.run(put(store, "/later"))
        runner.run(store.close())


async def test_loops_in_several_threads(url: str) -> None:
    """Loops in several threads use one file at once, each through its own opening."""

    async def main(name: str) -> None:
        store = await opened(url)
        await asyncio.gather(*(put(store, f"/{name}/{number}") for number in range(50)))
        await store.close()

    running = [threading.Thread(target=asyncio.run, args=(main(str(number)),)) for number in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()

    store = await opened(url)
    for number in range(150):
        assert await store.get(Key(f"/{number // 50}/{number % 50}")) is not None
    await store.close()


def test_a_loop_that_is_busy_holds_up_nobody_else(url: str) -> None:
    """The database thread does not wait for a busy loop when it wakes watches; the watch wakes later."""
    armed, go_on = threading.Event(), threading.Event()
    woken: list[str] = []

    async def busy() -> None:
        store = await opened(url)
        watch = await store.watch(Key("/watched"))
        armed.set()
        go_on.wait(PATIENCE_S)  # on purpose: nothing else runs in this loop meanwhile
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()
        woken.append("watched")
        await store.close()

    async def others() -> None:
        store = await opened(url)
        async with asyncio.timeout(PATIENCE_S):
            await put(store, "/watched")
            await put(store, "/else")
            assert await store.get(Key("/else")) is not None
        assert not go_on.is_set()
        await store.close()

    thread = threading.Thread(target=asyncio.run, args=(busy(),))
    thread.start()
    assert armed.wait(PATIENCE_S)
    asyncio.run(others())
    go_on.set()
    thread.join()
    assert woken == ["watched"]


async def test_closing_answers_what_is_under_way(url: str) -> None:
    """Operations that run when a store is closed get their true result; later ones are refused."""
    store = await opened(url)
    writes = [asyncio.create_task(put(store, f"/{number}")) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    with pytest.raises(Closed):
        await store.get(Key("/0"))
    store = await opened(url)
    assert await store.get(Key("/19")) is not None
    await store.close()


def test_cancelled_opening(url: str) -> None:
    """
    A cancelled opening does not affect other openings of the file, and a cancelled close does not affect the thread.
    """
    gate = threading.Event()

    class Slow(SqliteConnection):
        def __init__(self, location: Location, lock_timeout_ms: int) -> None:
            gate.wait()
            super().__init__(location, lock_timeout_ms)

    async def main() -> None:
        openings = [
            asyncio.create_task(open_metadata_store(url, SystemEnvironment(), MetadataOptions(), Slow))
            for _ in range(2)
        ]
        await run_ready()
        openings[0].cancel()
        await run_ready()
        gate.set()
        store = await openings[1]
        assert openings[0].cancelled()
        await put(store, "/a")
        gate.clear()
        busy = asyncio.create_task(store.database.read(lambda: wait_for(gate)))
        closing = asyncio.create_task(store.close())
        await run_ready()
        closing.cancel()
        await run_ready()
        gate.set()
        await busy
        again = await opened(url)
        assert await again.get(Key("/a")) is not None
        await again.close()

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name == "txnframework-sql":
            thread.join(PATIENCE_S)
    assert threads() == 0


async def test_ledger_closed_while_its_watch_is_armed(url: str) -> None:
    """A watch that is being armed when its ledger is closed is refused."""
    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(), None)
    ledger = await store.create("a")
    gate = threading.Event()
    busy = asyncio.create_task(store.database.read(lambda: wait_for(gate)))
    watching = asyncio.create_task(ledger.watch())
    await run_ready()
    await ledger.close()
    gate.set()
    await busy
    with pytest.raises(Closed):
        await watching
    await store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("share_connection", [True, False])
def test_fork(url: str, share_connection: bool) -> None:
    """A child cannot use its parent's open files, by any path, and does not disturb them; it can use other files."""
    options = MetadataOptions(share_connection=share_connection)
    loop = asyncio.new_event_loop()
    closed = loop.run_until_complete(opened(f"{url}-closed", options))
    loop.run_until_complete(closed.close())
    store = loop.run_until_complete(opened(url, options))
    loop.run_until_complete(put(store, "/parent"))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(in_child(store, url))
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.run_until_complete(put(store, "/after"))
    loop.run_until_complete(store.close())
    loop.close()


async def in_child(inherited: SqlMetadataStore, url: str) -> None:
    """Use files in a forked process."""
    with pytest.raises(Closed, match="forked"):
        await inherited.get(Key("/parent"))
    await inherited.close()
    path = url.removeprefix("sqlite:///")
    os.link(path, f"{path}-link")
    for refused in (url, f"{url}-link"):
        for share_connection in (True, False):
            with pytest.raises(InvalidInput, match="forked"):
                await opened(refused, MetadataOptions(share_connection=share_connection))
    for name in ("closed", "new"):
        store = await opened(f"{url}-{name}")
        await put(store, "/child")
        await store.close()
