"""The errors of failed statements: plain if the statement surely changed nothing, OutcomeUnknown otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from txnframework.errors import Corrupt, InvalidInput, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.testing import VirtualEnvironment
from txnframework.testing.servers.proxy import Proxy, Side
from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._errors import RetryableConflict, breaks_connection, in_doubt

INSERT = "INSERT INTO public.kept VALUES ($1)"
COUNT = "SELECT count(*) FROM public.kept"
LOCK = "SELECT * FROM public.kept WHERE number = $1 FOR UPDATE"
# As many bytes as are lost in the middle of a request.
HALF_BYTES = 9


async def prepared(connection: Connection) -> None:
    """Create the table, and prepare the statement, so that it is one request."""
    await connection.write("CREATE TABLE public.kept (number int UNIQUE)")
    await connection.write(INSERT, 1)


async def in_transaction(connection: Connection, *acts: tuple[str, int] | Callable[[], object]) -> None:
    """Write and read in one transaction, which is retried after a conflict."""
    async with connection.transaction():
        for act in acts:
            if isinstance(act, tuple):
                with suppress(RetryableConflict):
                    await connection.write(*act)
            else:
                act()


async def insert(connection: Connection) -> None:
    await connection.write(INSERT, 2)


async def script(connection: Connection) -> None:
    await connection.script("INSERT INTO public.kept VALUES (2); SELECT 1")


WRITES = pytest.mark.parametrize("write", [insert, script])


@WRITES
async def test_lost_reply_of_a_write(wire: Any, write: Callable[[Connection], Awaitable[None]]) -> None:
    """A write without a reply raises OutcomeUnknown, and a read over another connection finds it."""
    async with wire.proxied() as (connections, proxy), connections.lend() as connection:
        await prepared(connection)
        proxy.cut_after(0, Side.SERVER)
        with pytest.raises(OutcomeUnknown, match="read it back before trying again"):
            await write(connection)
        assert connection.is_lost
        assert await wire.ask(COUNT) == 2


@WRITES
@pytest.mark.parametrize("passed_bytes", [0, HALF_BYTES])
async def test_lost_request_of_a_write(
    wire: Any, write: Callable[[Connection], Awaitable[None]], passed_bytes: int
) -> None:
    """A write that did not arrive completely raises OutcomeUnknown too, and a read does not find it."""
    async with wire.proxied() as (connections, proxy), connections.lend() as connection:
        await prepared(connection)
        proxy.cut_after(passed_bytes, Side.CLIENT)
        with pytest.raises(OutcomeUnknown):
            await write(connection)
        assert await wire.ask(COUNT) == 1


@pytest.mark.parametrize("sender", list(Side))
async def test_lost_while_a_write_is_prepared(wire: Any, sender: Side) -> None:
    """
    A loss during the preparation raises OutcomeUnknown, because the driver does not distinguish it from a loss of the
    execution.
    """
    async with wire.proxied() as (connections, proxy), connections.lend() as connection:
        await connection.script("CREATE TABLE public.kept (number int)")
        proxy.cut_after(0, sender)
        with pytest.raises(OutcomeUnknown):
            await connection.write(INSERT, 2)
        assert await wire.ask(COUNT) == 0


@pytest.mark.parametrize("sender", list(Side))
async def test_lost_read(wire: Any, sender: Side) -> None:
    """A read changes nothing, however it ends; the next connection works."""
    async with wire.proxied(connections_max=1) as (connections, proxy):
        async with connections.lend() as connection:
            await connection.read("SELECT 1")
            proxy.cut_after(0, sender)
            with pytest.raises(Unavailable):
                await connection.read("SELECT 1")
        with pytest.raises(Unavailable, match="cannot connect to"):
            async with connections.lend():
                pass
        proxy.restore()
        async with connections.lend() as connection:
            assert await connection.read("SELECT 1") == [(1,)]


@pytest.mark.parametrize("sender", list(Side))
async def test_lost_inside_a_transaction(wire: Any, sender: Side) -> None:
    """A write that is lost before COMMIT was sent is surely undone: a plain error."""
    async with wire.proxied() as (connections, proxy), connections.lend() as connection:
        await prepared(connection)
        with pytest.raises(Unavailable):
            await in_transaction(connection, lambda: proxy.cut_after(0, sender), (INSERT, 2))
        assert await wire.ask(COUNT) == 1


@pytest.mark.parametrize(("sender", "count"), [(Side.SERVER, 2), (Side.CLIENT, 1)])
async def test_lost_commit(wire: Any, sender: Side, count: int) -> None:
    """COMMIT without a reply raises OutcomeUnknown, whether it arrived or not; a read shows which."""
    async with wire.proxied() as (connections, proxy), connections.lend() as connection:
        await prepared(connection)
        with pytest.raises(OutcomeUnknown):
            await in_transaction(connection, (INSERT, 2), lambda: proxy.cut_after(0, sender))
        assert await wire.ask(COUNT) == count


async def test_commit_of_what_has_failed(wire: Any) -> None:
    """The server answers the COMMIT of a failed transaction with ROLLBACK, without an error; here it raises one."""
    async with wire.connected() as connections, connections.lend() as connection:
        await prepared(connection)
        with pytest.raises(Unavailable, match="rolled back"):
            await in_transaction(connection, (INSERT, 2), (INSERT, 1))
        assert await wire.ask(COUNT) == 1


async def test_an_error_undoes_a_transaction(wire: Any) -> None:
    """An error of the block is raised unchanged, and the connection can be used at once."""
    async with wire.connected() as connections, connections.lend() as connection:
        await prepared(connection)
        with pytest.raises(KeyError):
            await in_transaction(connection, (INSERT, 2), lambda: {}["nothing"])
        assert await connection.read(COUNT) == [(1,)]


async def test_ended_by_the_administrator(wire: Any) -> None:
    """A connection that the server ends may have committed before: OutcomeUnknown for a write, plain for a read."""
    async with wire.connected() as connections:
        async with connections.lend() as connection:
            with pytest.raises(OutcomeUnknown, match="administrator"):
                await connection.write("SELECT pg_terminate_backend(pg_backend_pid())")
        async with connections.lend() as connection:
            with pytest.raises(Unavailable, match="its administrator ended this connection"):
                await connection.read("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.parametrize("act", [Connection.read, Connection.write])
async def test_statement_timeout(wire: Any, act: Callable[[Connection, str], Awaitable[object]]) -> None:
    """The server's own timeout rolls the statement back with a plain error, and the connection stays usable."""
    async with wire.connected(statement_timeout_ms=1_000) as connections, connections.lend() as connection:
        with pytest.raises(Unavailable, match="statement_timeout_ms"):
            await act(connection, "SELECT pg_sleep(60)")
        assert await connection.read("SELECT 1") == [(1,)]


async def read_anew(connection: Connection, _: str) -> None:
    """Read by a statement that was not prepared before."""
    await connection.read("SELECT 2")


async def begin(connection: Connection, _: str) -> None:
    async with connection.transaction():
        pass


@pytest.mark.parametrize(
    ("act", "expected", "told"),
    [
        (Connection.read, Unavailable, "did not reply in time"),
        (Connection.write, OutcomeUnknown, "no reply in time"),
        (Connection.script, OutcomeUnknown, "did not confirm a write"),
        (read_anew, Unavailable, "did not reply in time"),
        (begin, Unavailable, "did not reply in time"),
    ],
)
async def test_no_reply_in_time(
    wire: Any, act: Callable[[Connection, str], Awaitable[object]], expected: type[TxnFrameworkError], told: str
) -> None:
    """
    After a missing reply the connection is terminated: OutcomeUnknown for a write, plain for a read.

    A later use of that connection raises a plain error.
    """
    async with wire.proxied() as (connections, proxy), connections.lend() as connection:
        await connection.write("SELECT 1")
        wire.miss_replies_soon(connection)
        proxy.stall()
        with pytest.raises(expected, match=told):
            await act(connection, "SELECT 1")
        assert connection.is_lost
        with pytest.raises(Unavailable, match="broke down"):
            await connection.write("SELECT 1")
        proxy.restore()


async def test_no_reply_in_time_inside_a_transaction(wire: Any) -> None:
    """A write that timed out before COMMIT was sent is surely undone: a plain error."""
    async with wire.proxied() as (connections, proxy):
        async with connections.lend() as connection:
            await prepared(connection)
            wire.miss_replies_soon(connection)
            with pytest.raises(Unavailable, match="did not reply in time"):
                await in_transaction(connection, proxy.stall, (INSERT, 2))
            assert connection.is_lost
        proxy.restore()
        assert await wire.ask(COUNT) == 1


async def test_lock_timeout(wire: Any) -> None:
    """A wait for a lock fails after the configured time, and not after a multiple of it."""
    calls = 0

    async def lock(connection: Connection) -> None:
        nonlocal calls
        calls += 1
        await connection.read(LOCK, 1)

    async with wire.connected(lock_timeout_ms=20) as connections, connections.lend() as connection:
        await prepared(connection)
        async with connection.transaction():
            await connection.read(LOCK, 1)
            with pytest.raises(Unavailable, match="lock_timeout_ms"):
                await connections.run(lock)
        assert calls == 1


async def test_deadlock(wire: Any) -> None:
    """The server rolls back one of two deadlocked transactions, which is retried; both succeed."""
    url = wire.url_with(query="options=-c%20deadlock_timeout%3D10ms")
    async with wire.connected(url) as connections:
        async with connections.lend() as connection:
            await prepared(connection)
            await connection.write(INSERT, 2)
        both = asyncio.Barrier(2)
        attempts = 0

        async def lock(connection: Connection, first: int, second: int) -> None:
            nonlocal attempts
            attempts += 1
            async with connection.transaction():
                await connection.read(LOCK, first)
                if attempts <= 2:
                    await both.wait()
                await connection.read(LOCK, second)

        await asyncio.gather(
            connections.run(lambda connection: lock(connection, 1, 2)),
            connections.run(lambda connection: lock(connection, 2, 1)),
        )
        # Sometimes the one that was undone is quick enough to be in the way again.
        assert 3 <= attempts <= 2 + connections._options.retries_max


RAISE = "DO $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '{}'; END $$"


@pytest.mark.parametrize(
    ("code", "expected"),
    [("40001", Unavailable), ("40P01", Unavailable), ("23505", Corrupt)],
)
async def test_retries_are_bounded(wire: Any, code: str, expected: type[TxnFrameworkError]) -> None:
    """Work is retried ``retries_max`` times, the first time at once, then after growing pauses."""
    environment = VirtualEnvironment()
    times_ms: list[int] = []

    async def work(connection: Connection) -> None:
        times_ms.append(environment.now_ms())
        await connection.write(RAISE.format(code))

    async with wire.connected(environment=environment, retries_max=12) as connections:
        task = asyncio.create_task(connections.run(work))
        await wire.until(lambda: len(times_ms) == 2)
        assert times_ms[0] == times_ms[1]
        while not task.done():
            await asyncio.sleep(0)
            if (next_ms := environment.next_ms()) is not None:
                environment.move_to(next_ms)
        with pytest.raises(expected):
            await task
    pauses_ms = [after - before for before, after in pairwise(times_ms)]
    assert len(pauses_ms) == 12
    assert 0 < max(pauses_ms) <= 1001
    assert all(pause_ms > 0 for pause_ms in pauses_ms[1:])


async def test_no_retry_of_what_is_in_doubt(wire: Any) -> None:
    """Work of unknown outcome is not retried."""
    calls = 0

    async def work(connection: Connection) -> None:
        nonlocal calls
        calls += 1
        await connection.write("SELECT pg_terminate_backend(pg_backend_pid())")

    async with wire.connected() as connections:
        with pytest.raises(OutcomeUnknown):
            await connections.run(work)
    assert calls == 1


async def test_tables_that_changed(wire: Any) -> None:
    """A statement prepared before another process changed its table is prepared again, within the retries."""
    async with wire.connected(connections_max=1) as connections:
        async with connections.lend() as connection:
            await prepared(connection)
            assert await connection.read("SELECT * FROM public.kept") == [(1,)]
        await wire.ask("ALTER TABLE public.kept ADD COLUMN more int")
        assert await connections.run(lambda connection: connection.read("SELECT * FROM public.kept")) == [(1, None)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("no number",), "argument of this type"), ((1, 2), "expects 1 argument"), ((1 << 40,), "argument of this type")],
)
async def test_a_value_that_is_not_taken(wire: Any, arguments: tuple[object, ...], expected: str) -> None:
    """A statement that the driver does not send raises no OutcomeUnknown, and its error does not contain the value."""
    async with wire.connected() as connections, connections.lend() as connection:
        await prepared(connection)
        with pytest.raises((InvalidInput, Unavailable), match=expected) as raised:
            await connection.write(INSERT, *arguments)
        assert "no number" not in str(raised.value)
        assert await connection.read(COUNT) == [(1,)]


async def test_read_only_database(wire: Any) -> None:
    """A read-only server is reported with the remedy; Unavailable, because it may accept writes later."""
    await wire.ask("CREATE TABLE public.kept (number int)")
    await wire.ask(f"ALTER DATABASE {wire.name} SET default_transaction_read_only = on")
    async with wire.connected() as connections, connections.lend() as connection:
        with pytest.raises(Unavailable, match="name the primary in the URL"):
            await connection.write(INSERT, 1)
        assert await connection.read(COUNT) == [(0,)]


async def test_a_moment_in_view(wire: Any) -> None:
    """Reads in a view share one snapshot; in a transaction each has its own, whatever the database's default is."""
    await wire.ask(f"ALTER DATABASE {wire.name} SET default_transaction_isolation = 'serializable'")
    async with wire.connected() as connections, connections.lend() as one, connections.lend() as two:
        await prepared(one)
        async with one.view():
            assert await one.read(COUNT) == [(1,)]
            await two.write(INSERT, 2)
            assert await one.read(COUNT) == [(1,)]
        async with one.transaction():
            assert await one.read(COUNT) == [(2,)]
            await two.write(INSERT, 3)
            assert await one.read(COUNT) == [(3,)]


async def test_proxy_is_between(wire: Any) -> None:
    """The tests above cut the connections that they claim to cut."""
    async with wire.proxied() as (connections, proxy):
        assert isinstance(proxy, Proxy)
        async with connections.lend():
            assert proxy.connections == 1


def test_a_server_that_has_just_taken_leave() -> None:
    """Between the server's last message and the end of the connection, the driver sends nothing: a plain error."""
    error = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
    assert isinstance(in_doubt(error, "here"), Unavailable)
    assert isinstance(in_doubt(asyncpg.InternalClientError("got something unexpected"), "here"), OutcomeUnknown)
    assert breaks_connection(error)
