"""A write of unknown outcome is decided before any read: a write that a read did not find never appears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._pool import Pool

COUNT = "SELECT count(*) FROM public.kept"
UPDATE = "UPDATE public.kept SET number = 2"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


async def update(connection: Connection) -> None:
    await connection.write(UPDATE)


async def read(connection: Connection) -> int:
    return int((await connection.read("SELECT number FROM public.kept"))[0][0])


@asynccontextmanager
async def row_locked(wire: Any, connections: Pool) -> AsyncIterator[None]:
    """Create a row and hold its lock in another session, for a block."""
    await connections.run(lambda connection: connection.script("CREATE TABLE public.kept (number int)"))
    await connections.run(lambda connection: connection.write("INSERT INTO public.kept VALUES (1)"))
    async with wire.connected() as others, others.lend() as other, other.transaction():
        await other.read("SELECT FROM public.kept FOR UPDATE")
        yield


async def waiting(wire: Any, count: int) -> None:
    """Return when this many statements wait for a lock."""
    async with wire.connected() as connections, connections.lend() as connection:
        while (await connection.read(WAITING))[0][0] != count:  # noqa: ASYNC110 - the server sets no event
            await asyncio.sleep(0.001)


async def lose(wire: Any, connections: Pool, break_down: Callable[[], object]) -> None:
    """Begin a write, which waits for a lock, and lose its connection."""
    writing = asyncio.create_task(connections.run(update))
    await waiting(wire, 1)
    break_down()
    with pytest.raises(OutcomeUnknown):
        await writing


async def after_everything(wire: Any) -> int:
    """Return the stored number when no session waits any longer."""
    await waiting(wire, 0)
    return int(await wire.ask("SELECT number FROM public.kept FOR UPDATE"))


async def test_lost_while_it_waits_for_a_lock(wire: Any) -> None:
    """
    A server that does not notice the loss would write once it gets the lock, after a read; its process is ended first.
    """
    async with wire.proxied() as (connections, proxy):
        async with row_locked(wire, connections):
            await lose(wire, connections, proxy.reset_connections)
            seen = await connections.run(read)
        assert seen == await after_everything(wire) == 1


async def test_opened_again(wire: Any) -> None:
    """An uncertain write outlives its connections: a store that is opened again decides it as well."""
    async with wire.proxied() as (connections, proxy):
        url = wire.url_with(address=proxy.address)
        async with row_locked(wire, connections):
            await lose(wire, connections, proxy.reset_connections)
            await connections.close()
            async with wire.connected(url) as again:
                seen = await again.run(read)
        assert seen == await after_everything(wire) == 1


async def test_cancelled_and_then_lost(wire: Any) -> None:
    """No read happens before a cancelled write has ended that did not receive its cancellation."""
    async with wire.proxied() as (connections, proxy):
        async with row_locked(wire, connections):
            writing = asyncio.create_task(connections.run(update))
            await waiting(wire, 1)
            # The request that cancels the command on the server has a connection of its own.
            proxy.cut()
            writing.cancel()
            with pytest.raises((asyncio.CancelledError, OutcomeUnknown)):
                await writing
            proxy.restore()
            seen = await connections.run(read)
        assert seen == await after_everything(wire) == 1


async def test_done_before_it_is_ended(wire: Any) -> None:
    """A write that was committed before its process was ended is found."""
    async with wire.proxied() as (connections, proxy):
        async with row_locked(wire, connections):
            await lose(wire, connections, proxy.reset_connections)
        await waiting(wire, 0)
        assert await connections.run(read) == await after_everything(wire)


async def test_cannot_be_ended(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the lost process still exists, no connection is lent."""
    async with wire.proxied() as (connections, proxy), row_locked(wire, connections):
        await lose(wire, connections, proxy.reset_connections)
        with monkeypatch.context() as patched:
            # It has heard that it is to end, and is in the middle of something that nothing interrupts.
            patched.setattr(
                "txnframework_sql.postgresql._connection._END",
                "SELECT $3::int < 0 FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2",
            )
            with pytest.raises(Unavailable, match="has not yet ended process"):
                await connections.run(read)
        assert await connections.run(read) == 1


async def test_given_up_here_and_being_ended_by_others(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settled connection is not used again if another caller has requested the end of its process."""
    # As the statement is, but not before it may.
    monkeypatch.setattr(
        "txnframework_sql.postgresql._connection._END",
        "WITH may AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(7))"
        " SELECT pg_terminate_backend(pid, $3) FROM may, pg_stat_activity WHERE pid = $1 AND backend_start = $2",
    )

    async with (
        wire.connected(connections_max=1) as connections,
        wire.connected() as looking,
        wire.connected() as others,
    ):
        assert await looking.run(lambda connection: connection.read("SELECT 1"))
        async with row_locked(wire, connections), others.lend() as other:
            await other.read("SELECT pg_advisory_lock(7)")
            writing = asyncio.create_task(connections.run(update))
            await waiting(wire, 1)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            seen = asyncio.create_task(looking.run(read))
            async with connections.lend() as connection, connection.transaction():
                assert await read(connection) == 1
                await waiting(wire, 1)
                await other.read("SELECT pg_advisory_unlock(7)")
                assert await seen == 1
                assert await read(connection) == 1
