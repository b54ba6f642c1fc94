"""The check that a connection is one session of the server, also through a connection pooler."""

from __future__ import annotations

import asyncio

import asyncpg

from txnframework.errors import InvalidInput, Unavailable
from txnframework_sql.postgresql._connection import Driver

_PID = "SELECT pg_catalog.pg_backend_pid()"
_OTHER_S = 5


async def require_sessions(driver: Driver, url: str, shown_url: str) -> None:
    """
    Raise InvalidInput if a pooler gives the transactions of a connection to different sessions of the server.

    Settings would then reach the programs that share the pool, and notifications would be lost. So nothing is set and
    nothing is prepared here.

    A connection without a pooler knows the pid of its session. Through a pooler, a second connection is made. It can
    get the session of the first one only if that session is not kept. While it holds one in a transaction, the first
    one must stay in its own.
    """
    # The number of rows is in the reply; to fetch them, the driver would prepare the statement.
    if await driver.execute(f"SELECT 1 WHERE pg_catalog.pg_backend_pid() = {driver.get_server_pid()}") == "SELECT 1":
        return
    try:
        pids = {await _pid(driver)}
    except asyncpg.ProtocolViolationError as error:
        if "statement pooling" in str(error):
            raise _not_kept(shown_url) from error
        raise
    other: asyncpg.Connection[asyncpg.Record] | None = None
    try:
        # Real time, because the wait happens outside this process.
        async with asyncio.timeout(_OTHER_S):
            other = await asyncpg.connect(url)
            async with other.transaction():
                others_pid = await _unprepared(other)
                pids.add(await _pid(driver))
    except TimeoutError:
        raise Unavailable(
            f"the connection pooler at {shown_url} provides no second connection within {_OTHER_S} s; raise its pool"
            " size, since a process needs connections_max and two more"
        ) from None
    finally:
        if other is not None:
            other.terminate()
    # A pool whose sessions take turns hands out different ones now.
    pids |= {await _pid(driver), await _pid(driver)}
    if len(pids) > 1 or others_pid in pids:
        raise _not_kept(shown_url)


def _not_kept(shown_url: str) -> InvalidInput:
    return InvalidInput(
        f"a connection pooler at {shown_url} gives each transaction another session of the server; set its pool mode to"
        " session for this database (pool_mode = session), or connect to the server itself"
    )


async def _pid(driver: asyncpg.Connection[asyncpg.Record]) -> int:
    async with driver.transaction():
        return await _unprepared(driver)


async def _unprepared(driver: asyncpg.Connection[asyncpg.Record]) -> int:
    """Return the pid of the session in a transaction, without a prepared statement that would remain there."""
    statement = await driver.prepare(_PID, name="")
    pid: int = await statement.fetchval()
    return pid
