"""The lending of connections: limits, cancelled callers, closing, forks and event loops."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import Closed, Unavailable
from txnframework_sql._options import PostgresqlOptions
from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._database import OpenPools
from txnframework_sql.postgresql._pool import Pool
from txnframework_sql.postgresql._server import locate

SLEEP = "SELECT pg_sleep(600)"
OTHERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend'"
)
BUSY = f"{OTHERS} AND state <> 'idle'"


async def one(connections: Pool) -> Any:
    async with connections.lend() as connection:
        return (await connection.read("SELECT 1"))[0][0]


async def begun(wire: Any, condition: str = BUSY, count: int = 1) -> None:
    """Return when the server executes a statement of another session."""
    while await wire.ask(condition) != count:
        pass


async def test_connections_are_bounded_and_kept(wire: Any) -> None:
    """At most ``connections_max`` are opened, further callers wait, and connections are reused."""
    async with wire.connected(connections_max=2) as connections:
        pids = set()

        async def look() -> None:
            async with connections.lend() as connection:
                pids.add((await connection.read("SELECT pg_backend_pid()"))[0][0])

        await asyncio.gather(*(look() for _ in range(20)))
        assert len(pids) == 2
        async with connections.lend(), connections.lend():
            third = asyncio.create_task(one(connections))
            # A process of an earlier test, whose connection is gone, may take its time to end.
            await begun(wire, OTHERS, 2)
            assert not third.done()
        assert await third == 1


async def test_a_lost_connection_is_replaced(wire: Any) -> None:
    """A connection that was lost while unused is detected before anything is sent: even a write succeeds."""
    async with wire.proxied(connections_max=1) as (connections, proxy):
        async with connections.lend() as connection:
            await connection.script("CREATE TABLE public.kept (number int)")
        proxy.reset_connections()
        await wire.until(lambda: connection.is_lost)
        async with connections.lend() as connection:
            await connection.write("INSERT INTO public.kept VALUES ($1)", 1)
        assert await wire.ask("SELECT count(*) FROM public.kept") == 1


async def test_one_that_was_not_used_for_long_has_to_answer(wire: Any) -> None:
    """A vanished server is detected before anything is sent to it, and the connection is replaced."""
    options = {"connections_max": 1, "keepalive_interval_s": 1, "keepalive_count": 1}
    async with wire.proxied(**options) as (connections, proxy):
        async with connections.lend() as first:
            await first.script("CREATE TABLE public.kept (number int)")
        first.last_used_s -= PostgresqlOptions().keepalive_idle_s + 1
        async with connections.lend() as again:
            assert again is first
        first.last_used_s -= PostgresqlOptions().keepalive_idle_s + 1
        proxy.stall()
        writing = asyncio.create_task(
            connections.run(lambda connection: connection.write("INSERT INTO public.kept VALUES ($1)", 1))
        )
        await wire.until(lambda: first.is_lost)
        proxy.restore()
        await writing
        assert await wire.ask("SELECT count(*) FROM public.kept") == 1


async def sleep(connection: Connection) -> None:
    await connection.write(SLEEP)


async def sleep_in_transaction(connection: Connection) -> None:
    async with connection.transaction():
        await connection.write("LOCK TABLE public.kept")
        await connection.write(SLEEP)


async def sleep_in_view(connection: Connection) -> None:
    async with connection.view():
        await connection.read(SLEEP)


async def wait_in_transaction(connection: Connection) -> None:
    async with connection.transaction():
        await connection.write("LOCK TABLE public.kept")
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("act", "state"),
    [
        (sleep, "active"),
        (sleep_in_transaction, "active"),
        (sleep_in_view, "active"),
        (wait_in_transaction, "idle in transaction"),
    ],
)
async def test_a_cancelled_caller(wire: Any, act: Callable[[Connection], Awaitable[None]], state: str) -> None:
    """
    It returns at once. Its statement and transaction end before the next caller gets the connection, which stays open.
    """
    async with wire.connected(connections_max=1) as connections:
        async with connections.lend() as connection:
            await connection.script("CREATE TABLE public.kept (number int)")
            pid = connection.backend.pid
        task = asyncio.create_task(connections.run(act))
        held = f"{OTHERS} AND state = '{state}' AND query NOT LIKE 'BEGIN%'"
        if state == "idle in transaction":
            held += " AND query LIKE 'LOCK%'"
        else:
            held += " AND query LIKE '%sleep%'"
        await begun(wire, held)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with connections.lend() as connection:
            assert connection.backend.pid == pid
            assert await wire.ask(f"{BUSY} AND pid = {pid}") == 0
            async with connection.transaction():
                await connection.write("LOCK TABLE public.kept NOWAIT")


async def test_cancelled_while_it_connects_or_waits(wire: Any) -> None:
    """Neither of the cancelled callers keeps a slot."""
    async with wire.proxied(connections_max=1) as (connections, proxy):
        proxy.stall()
        connecting = asyncio.create_task(one(connections))
        waiting = asyncio.create_task(one(connections))
        await wire.until(lambda: proxy.connections == 1)
        for task in (waiting, connecting):
            task.cancel()
        await asyncio.gather(waiting, connecting, return_exceptions=True)
        proxy.restore()
        assert await one(connections) == 1


async def test_cancelled_while_nothing_passes(wire: Any) -> None:
    """If the server does not receive a cancellation, the connection is terminated after a limited wait."""
    async with wire.proxied(connections_max=1) as (connections, proxy):
        async with connections.lend() as connection:
            await connection.read("SELECT 1")
            wire.miss_replies_soon(connection)
            proxy.stall()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await connection.read("SELECT 1")
        next_one = asyncio.create_task(one(connections))
        await wire.until(lambda: connection.is_lost)
        proxy.restore()
        assert await next_one == 1


async def test_closing_waits_for_what_is_under_way(wire: Any) -> None:
    """Running callers finish, waiting ones are refused, and no connection remains at the server."""
    async with wire.connected(connections_max=1) as connections:
        async with connections.lend() as connection:
            waiting = asyncio.create_task(one(connections))
            await asyncio.sleep(0)
            closing = asyncio.create_task(connections.close())
            await asyncio.sleep(0)
            assert await connection.read("SELECT 1") == [(1,)]
            assert not closing.done()
        await closing
        with pytest.raises(Closed, match="was closed"):
            await waiting
        with pytest.raises(Closed, match="was closed"):
            await one(connections)
        await connections.close()
        await begun(wire, OTHERS, 0)


async def test_a_cancelled_close(wire: Any) -> None:
    """It is completed after the running operations; a later close waits for it."""
    async with wire.connected(connections_max=2) as connections:
        async with connections.lend(), connections.lend() as connection:
            closing = asyncio.create_task(connections.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            assert await connection.read("SELECT 1") == [(1,)]
        await connections.close()
        await begun(wire, OTHERS, 0)


async def test_closing_while_nothing_passes(wire: Any) -> None:
    """The wait for a server that does not answer a close is short."""
    async with wire.proxied(connections_max=1) as (connections, proxy):
        async with connections.lend() as connection:
            pass
        proxy.stall()
        await connections.close()
        assert connection.is_lost


def test_another_event_loop(wire: Any) -> None:
    """A pool belongs to the loop that created it; another loop gets Closed, and may close the pool without harm."""

    async def opened() -> Pool:
        connections = Pool(locate(wire.url), SystemEnvironment(), PostgresqlOptions())
        assert await one(connections) == 1
        return connections

    async def elsewhere(connections: Pool) -> None:
        with pytest.raises(Closed, match="event loop that opened it"):
            await one(connections)

    loop = asyncio.new_event_loop()
    connections = loop.run_until_complete(opened())
    asyncio.run(elsewhere(connections))
    assert loop.run_until_complete(one(connections)) == 1
    loop.run_until_complete(connections.close())
    loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
async def test_a_server_that_is_gone_is_told_of_once(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    """
    One line is logged when a server stops answering, and one when it answers again; a server that never answered only
    raises.
    """
    async with wire.proxied(connections_max=1) as (connections, proxy):

        async def fails() -> None:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    async with connections.lend():
                        pass

        proxy.cut()
        await fails()
        assert caplog.records == []
        for _ in range(2):
            caplog.clear()
            proxy.restore()
            async with connections.lend():
                pass
            before = len(caplog.records)
            proxy.cut()
            await wire.until(lambda: proxy.connections == 0)
            await fails()
            (said,) = caplog.records[before:]
            assert "continue when the server answers again" in said.getMessage()
            assert connections.shown_url in said.getMessage()
        assert [record.getMessage() for record in caplog.records[:before]] == [f"{connections.shown_url} answers again"]


def test_fork(wire: Any) -> None:
    """A child may not use its parent's sockets, closes none of them, and may open connections of its own."""
    shared = OpenPools()

    def take() -> Pool:
        return shared.take(locate(wire.url), SystemEnvironment(), PostgresqlOptions(), is_shared=True)

    async def parent() -> Pool:
        connections = take()
        assert await one(connections) == 1
        return connections

    async def child(inherited: Pool) -> None:
        with pytest.raises(Closed, match="before this process was forked"):
            await one(inherited)
        await inherited.close()
        shared.forget()
        own = take()
        assert own is not inherited
        assert await one(own) == 1
        await shared.give_back(own)

    loop = asyncio.new_event_loop()
    connections = loop.run_until_complete(parent())
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(child(connections))
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert loop.run_until_complete(one(connections)) == 1
    loop.run_until_complete(shared.give_back(connections))
    loop.close()


async def test_stores_of_one_database_share(wire: Any) -> None:
    """Stores with the same loop, URL, environment and options share connections, which the last one closes."""
    shared, environment, options = OpenPools(), SystemEnvironment(), PostgresqlOptions()
    server = locate(wire.url)
    first = shared.take(server, environment, options, is_shared=True)
    second = shared.take(locate(wire.url), environment, options, is_shared=True)
    others = [
        shared.take(server, environment, options, is_shared=False),
        shared.take(server, environment, PostgresqlOptions(connections_max=1), is_shared=True),
        shared.take(server, SystemEnvironment(), options, is_shared=True),
    ]
    assert first is second
    assert all(other is not first for other in others)
    await shared.give_back(first)
    assert await one(second) == 1
    for connections in (second, *others):
        await shared.give_back(connections)
    with pytest.raises(Closed):
        await one(second)


async def test_what_a_session_is_like(wire: Any) -> None:
    """Confirmed writes are on disk and sessions have the expected settings, whatever the database's defaults are."""
    for setting in ("synchronous_commit = off", "default_transaction_isolation = 'serializable'", "jit = on"):
        await wire.ask(f"ALTER DATABASE {wire.name} SET {setting}")
    url = wire.url_with(query="application_name=mine&options=-c%20work_mem%3D5MB")
    expected = {
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "jit": "off",
        "statement_timeout": "7s",
        "idle_in_transaction_session_timeout": "7s",
        "lock_timeout": "3s",
        "application_name": "mine",
        "work_mem": "5MB",
    }
    options = {"statement_timeout_ms": 7_000, "lock_timeout_ms": 3_000}
    async with wire.connected(url, **options) as connections, connections.lend() as connection:
        for name, value in expected.items():
            assert await connection.read("SELECT current_setting($1)", name) == [(value,)], name
    await wire.ask(f"ALTER DATABASE {wire.name} SET synchronous_commit = remote_write")
    assert await wire.ask("SHOW synchronous_commit") == "remote_write"


async def test_prepared_statements_are_bounded(wire: Any) -> None:
    """A connection drops the least recently used statement, here and at the server."""
    async with wire.connected(statements_max=4) as connections, connections.lend() as connection:
        for number in range(40):
            await connection.read(f"SELECT {number}")
            await connection.read("SELECT 'often'")
        found = await connection.read("SELECT statement FROM pg_prepared_statements")
        assert len(found) <= 5
        assert "SELECT 'often'" in [row[0] for row in found]


async def test_a_server_that_is_too_old_or_not_unicode(wire: Any) -> None:
    """A database that cannot store every text is refused when connecting."""
    latin = f"{wire.name}_latin"
    await wire.ask(f"CREATE DATABASE {latin} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    try:
        async with wire.connected(wire.url_with(path=f"/{latin}")) as connections:
            with pytest.raises(Exception, match="--encoding=UTF8"):
                await one(connections)
    finally:
        await wire.ask(f"DROP DATABASE {latin} WITH (FORCE)")


async def test_no_connection_left(wire: Any) -> None:
    """The error of a server without free connections names both limits."""
    role = f"{wire.name}_few"
    await wire.ask(f"CREATE ROLE {role} LOGIN PASSWORD 'x' CONNECTION LIMIT 1")
    try:
        async with wire.connected(wire.url_with(login=f"{role}:x")) as connections, connections.lend():
            with pytest.raises(Unavailable, match="connections_max"):
                await one(connections)
    finally:
        await wire.ask(f"DROP ROLE {role}")
