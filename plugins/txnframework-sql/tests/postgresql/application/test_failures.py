"""Rows and header have one outcome, whatever fails between the put and the reply to the COMMIT."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from application_connections import INSERT, KINDS, Application, Way, asked
from sqlalchemy.exc import DBAPIError

from txnframework.errors import InvalidInput, OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.model import Expect, Key, Put
from txnframework.testing.servers.proxy import Proxy, Side

Run = Callable[..., None]

HOUR_MS = 3_600_000
LOCK = "SELECT FROM mine WHERE text = '{}' FOR UPDATE"

_DRIVER_ERRORS = (asyncpg.PostgresError, psycopg.Error, DBAPIError)
_SOME = ("asyncpg", "psycopg", "AsyncSession-asyncpg", "AsyncSession-psycopg", "Connection")


@pytest.fixture(params=_SOME)
def kind(request: pytest.FixtureRequest) -> Any:
    """Return what opens a connection of one kind, for each way in which drivers report errors."""
    return KINDS[request.param]


def through(proxy: Proxy, url: str) -> str:
    """Return the URL through a proxy."""
    split = urlsplit(url)
    host, port = proxy.address
    return split._replace(netloc=f"{split.netloc.rpartition('@')[0]}@{host}:{port}").geturl()


def address(url: str) -> tuple[str, int]:
    """Return the address of the server."""
    split = urlsplit(url)
    return split.hostname or "localhost", split.port or 5432


async def resolved(application: Application, version: int | Expect) -> tuple[int, bytes]:
    """Try to abort, as the coordinator does after a lost reply; return the rows and the state of the header."""
    with suppress(VersionMismatch):  # the put of the application was committed
        await application.store.put(Put(application.header, b"aborted", version))
    return await application.rows(), await application.state()


@pytest.mark.parametrize("kind", [name for name in _SOME if name not in ("psycopg", "Connection")], indirect=True)
async def test_a_lost_reply(kind: Any, application: Application) -> None:
    """A COMMIT that was carried out, or not, raises OutcomeUnknown; the attempt to abort finds out which."""
    for is_carried_out in (True, False):
        version = await application.begun()
        async with Proxy(address(application.url)) as proxy, kind(through(proxy, application.url)) as opened:
            joined = await application.store.join(opened.given)
            await opened.run(INSERT)
            await application.end(joined, version)
            if is_carried_out:
                proxy.cut_after(0, Side.SERVER)
            else:
                proxy.cut()
            with pytest.raises(OutcomeUnknown):
                await joined.commit()
            await joined.rollback()
        expected = (1, b"committed") if is_carried_out else (1, b"aborted")
        assert await resolved(application, version) == expected
        application.header = Key(f"{application.header.path}/again", "t")


async def test_an_answer_that_proves_a_rollback(kind: Any, application: Application) -> None:
    """A deferred constraint, a serialization failure and a failed row are raised as the driver raises them."""
    await asked(application.url, "DROP TABLE IF EXISTS parts")
    await asked(application.url, "CREATE TABLE parts (of int REFERENCES mine (id) DEFERRABLE INITIALLY DEFERRED)")
    version = await application.begun()
    async with kind(application.url) as opened:
        joined = await application.store.join(opened.given)
        await opened.run("INSERT INTO parts VALUES (7)")
        await application.end(joined, version)
        with pytest.raises(_DRIVER_ERRORS, match="foreign key"):
            await joined.commit()
        await joined.rollback()
        joined = await application.store.join(opened.given)
        with pytest.raises(_DRIVER_ERRORS, match="null"):
            await opened.run("INSERT INTO mine (text) VALUES (NULL)")
        with pytest.raises((*_DRIVER_ERRORS, InvalidInput), match=r"aborted|failed before"):
            await application.end(joined, version)
        await joined.rollback()
        joined = await application.store.join(opened.given)
        await opened.run(INSERT)
        await application.end(joined, version)
        await joined.commit()
    assert (await application.rows(), await application.state()) == (1, b"committed")
    await asked(application.url, "DROP TABLE parts")


@pytest.mark.parametrize("way", [Way.PUT], indirect=True, ids=["put"])
async def test_a_serialization_failure(application: Application) -> None:
    """Two serializable transactions that read each other's rows: one COMMIT fails, with its header."""
    version = await application.begun()
    one, two = [await asyncpg.connect(application.url) for _ in range(2)]
    for connection in (one, two):
        await connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
    joined = await application.store.join(one)
    for connection in (one, two):
        await connection.execute("SELECT count(*) FROM mine")
        await connection.execute(INSERT)
    await two.execute("COMMIT")
    with pytest.raises(asyncpg.SerializationError):
        await application.end(joined, version)
    await joined.rollback()
    assert (await application.rows(), await application.state()) == (1, b"open")
    await one.close()
    await two.close()


async def test_a_connection_that_the_administrator_ends(kind: Any, application: Application) -> None:
    """Ended between put and COMMIT: the outcome is unknown to the caller, and the rollback frees the header."""
    version = await application.begun()
    async with kind(application.url) as opened:
        joined = await application.store.join(opened.given)
        await opened.run("SET application_name = 'ended'")
        await opened.run(INSERT)
        await application.end(joined, version)
        await asked(
            application.url,
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'ended'",
        )
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await joined.commit()
        await joined.rollback()
    assert await resolved(application, version) == (0, b"aborted")


@pytest.mark.parametrize("options", [{"commit_pause_max_ms": 300}])
async def test_a_process_that_stops_before_its_commit(application: Application) -> None:
    """The server ends its transaction after commit_pause_max_ms, and writers that wait for the header continue."""
    version = await application.begun()
    async with Proxy(address(application.url)) as proxy:
        connection = await asyncpg.connect(through(proxy, application.url))
        joined = await application.store.join(connection)
        await connection.execute(INSERT)
        await application.end(joined, version)
        proxy.stall()
        assert await resolved(application, version) == (0, b"aborted")
        proxy.cut()
        connection.terminate()


@pytest.mark.parametrize("way", [Way.PUT], indirect=True, ids=["put"])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "options", [{"commit_pause_max_ms": HOUR_MS, "lock_timeout_ms": HOUR_MS, "statement_timeout_ms": HOUR_MS}]
)
async def test_others_while_a_header_is_locked(application: Application, *, together: bool) -> None:
    """Unrelated writes of the process do not wait for the locks of a stopped one, whenever the locked ones came."""
    versions = {}
    async with Proxy(address(application.url)) as proxy:
        connections = [await asyncpg.connect(through(proxy, application.url)) for _ in range(4)]
        for number, connection in enumerate(connections):
            application.header = Key(f"/locked/{together}/{number}", "t")
            version = versions[number] = await application.begun()
            joined = await application.store.join(connection)
            await application.end(joined, version)
        proxy.stall()
        aborts = []
        for number, version in versions.items():
            abort = Put(Key(f"/locked/{together}/{number}", "t"), b"aborted", version)
            aborts.append(asyncio.create_task(application.store.put(abort)))
            if not together:
                # Each gets a statement of its own.
                for _ in range(20):
                    await asyncio.sleep(0)
                await application.store.put(Put(Key(f"/between/{number}", "f"), b"", Expect.ANY))
        for turn in range(10):
            await application.store.put(Put(Key(f"/free/{turn}", "f"), b"", Expect.ANY))
        assert not any(abort.done() for abort in aborts)
        # Without them the server rolls back, and the headers are free.
        proxy.cut()
        for connection in connections:
            connection.terminate()
        await asyncio.gather(*aborts)


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "the other one"])
async def test_a_deadlock(is_ours: bool, application: Application) -> None:
    """The server rolls one of two applications back, which repeats its block."""
    version = await application.begun()
    await asked(application.url, "INSERT INTO mine (text) VALUES ('one'), ('two')")
    # The one that looks for a deadlock is rolled back; it looks once, so the other one waits already.
    looks = {True: "10ms", False: "1h"}
    ours = await asyncpg.connect(application.url, server_settings={"deadlock_timeout": looks[is_ours]})
    other = await asyncpg.connect(application.url, server_settings={"deadlock_timeout": looks[not is_ours]})
    try:
        joined = await application.store.join(ours)
        await other.execute("BEGIN")
        await ours.execute(LOCK.format("one"))
        await other.execute(LOCK.format("two"))
        first, last = (other, ours) if is_ours else (ours, other)
        waiting = asyncio.create_task(first.execute(LOCK.format("one" if is_ours else "two")))
        while not await asked(application.url, "SELECT count(*) FROM pg_locks WHERE NOT granted"):
            pass
        with pytest.raises(asyncpg.DeadlockDetectedError):
            await last.execute(LOCK.format("two" if is_ours else "one"))
        await waiting
        if is_ours:
            with pytest.raises((asyncpg.InFailedSQLTransactionError, InvalidInput), match=r"aborted|failed before"):
                await application.end(joined, version)
            await joined.rollback()
        else:
            await application.end(joined, version)
            await joined.commit()
        assert await application.state() == (b"open" if is_ours else b"committed")
    finally:
        await ours.close()
        await other.close()
