"""The connections of one event loop to one database: a bounded pool, and what is done again when others interfere."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import asyncpg

from txnframework.environment import Environment
from txnframework.errors import Closed, InvalidInput
from txnframework_sql.postgresql._connection import Connection, Row
from txnframework_sql.postgresql._errors import POSTGRESQL_ERRORS, Rerun, not_configured, not_connected
from txnframework_sql.postgresql._listener import Listener
from txnframework_sql.postgresql._options import PostgresqlOptions
from txnframework_sql.postgresql._url import Server, require_files

T = TypeVar("T")

_OLDEST = 14
_APPLICATION = "txnframework"
# The first time at once: the one that was in the way has ended. Then between nothing and this, doubled each time.
_FIRST_PAUSE_MS = 4
_LONGEST_PAUSE_MS = 1_000


class Connections:
    """
    Held connections, used in the event loop in which they were made, by the process that made them.

    They are connected when they are needed first and then kept. One that was lost is replaced, before anything is sent
    over it where that can be known.

    :raises Closed: they were closed, this process was forked from theirs, or this is another event loop.
    """

    def __init__(self, server: Server, environment: Environment, options: PostgresqlOptions) -> None:
        self.server = server
        self.shown_url = server.shown_url
        self._environment = environment
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self.listener = Listener(self.connect, server.shown_url, environment, options)
        """Hears of what others commit; closed with these."""
        self._room = asyncio.Semaphore(options.connections_max)
        self._idle: list[Connection] = []
        self._settling: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def require_open(self) -> None:
        """Raise Closed if these cannot be used any more, or not here."""
        if self._is_closed:
            raise Closed(f"the store {self.shown_url} was closed")
        if self._process != os.getpid():
            raise Closed(
                f"the store {self.shown_url} was opened before this process was forked, and belongs to its parent;"
                " open it again here"
            )
        if self._loop is not asyncio.get_running_loop():
            raise Closed(
                f"the store {self.shown_url} belongs to the event loop that opened it; open it again in this one"
            )

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """
        Lend a connection for the block; waits while all of ``connections_max`` are lent.

        What the block leaves under way, as one that is cancelled does, is ended before anybody else gets it.

        :raises Unavailable: no connection comes about; nothing was sent.
        """
        self.require_open()
        await self._room.acquire()
        try:
            self.require_open()
            connection = await self._take()
        except BaseException:
            self._room.release()
            raise
        try:
            yield connection
        finally:
            self._take_back(connection)

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """
        Return what ``work`` returns; from its start again, ``retries_max`` times, when another writer was in the way.

        ``work`` changes nothing but by the connection that it is given.
        """
        for attempt in range(self._options.retries_max + 1):
            if attempt > 1:
                await self._pause(attempt)
            try:
                async with self.lend() as connection:
                    return await work(connection)
            except Rerun as error:
                if attempt == self._options.retries_max:
                    raise error.if_always from error
        raise AssertionError("unreachable")

    async def connect(self) -> asyncpg.Connection[Row]:
        """Return a connection outside the pool, set up as all are; for who listens."""
        self.require_open()
        timeout_s = self.server.number("connect_timeout") or self._options.connect_timeout_ms / 1000
        try:
            # Real time, whatever the environment's clock says: it is spent outside this process.
            async with asyncio.timeout(timeout_s):
                return await self._connect(timeout_s)
        except asyncpg.ClientConfigurationError as error:
            raise not_configured(error, self.shown_url) from None
        except POSTGRESQL_ERRORS as error:
            raise not_connected(error, self.shown_url) from error
        except ValueError:
            # Its text may be a piece of a secret that stands where something else was looked for.
            raise InvalidInput(
                f"{self.shown_url}: its host, or one of the variables PGHOST, PGPORT, ..., cannot be used"
            ) from None

    async def close(self) -> None:
        """Let go of every connection, after what is under way; may be repeated."""
        was_closed, self._is_closed = self._is_closed, True
        if was_closed or self._process != os.getpid() or self._loop is not asyncio.get_running_loop():
            # What belongs to a parent or to another loop is not touched.
            return
        await self.listener.close()
        for _ in range(self._options.connections_max):
            await self._room.acquire()
        await asyncio.gather(*self._settling, return_exceptions=True)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(connection.close() for connection in idle))
        for _ in range(self._options.connections_max):
            self._room.release()

    async def _take(self) -> Connection:
        while self._idle:
            # The one used last: the others may be closed by whoever thinks they are forgotten.
            connection = self._idle.pop()
            if connection.is_idle:
                return connection
            connection.break_off()
        return Connection(await self.connect(), self.shown_url, self._options.statements_max)

    def _take_back(self, connection: Connection) -> None:
        if connection.is_lost or connection.is_idle:
            self._put_back(connection)
            return
        task = self._loop.create_task(self._settle(connection), name="txnframework-sql settling")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, connection: Connection) -> None:
        try:
            await connection.settle()
        except BaseException:
            connection.break_off()
            raise
        finally:
            self._put_back(connection)

    def _put_back(self, connection: Connection) -> None:
        if connection.is_lost:
            connection.break_off()
        else:
            self._idle.append(connection)
        self._room.release()

    async def _pause(self, attempt: int) -> None:
        longest_ms = min(_FIRST_PAUSE_MS << attempt, _LONGEST_PAUSE_MS)
        pause_ms = 1 + self._environment.random_bits(16) * longest_ms // (1 << 16)
        await self._environment.sleep_until(self._environment.now_ms() + pause_ms)

    async def _connect(self, timeout_s: float) -> asyncpg.Connection[Row]:
        server = self.server
        require_files(server)
        driver: asyncpg.Connection[Row] = await asyncpg.connect(
            f"postgresql://?{server.driver_query}" if server.driver_query else "postgresql://",
            host=list(server.hosts) or None,
            port=list(server.ports) or None,
            user=server.user,
            password=server.password,
            database=server.database,
            passfile=server.passfile,
            server_settings={"application_name": _APPLICATION, **dict(server.settings)},
            timeout=timeout_s,
            # When a reply is so late, the connection is taken for lost.
            command_timeout=self._options.reply_timeout_s,
        )
        try:
            _watch_over(driver, server, self._options)
            await self._set_up(driver)
        except BaseException:
            driver.terminate()
            raise
        return driver

    async def _set_up(self, driver: asyncpg.Connection[Row]) -> None:
        """Let a session be what the statements rely on, whatever is set for its user and database."""
        settings = driver.get_settings()
        if driver.get_server_version().major < _OLDEST:
            raise InvalidInput(f"{self.shown_url} is older than PostgreSQL {_OLDEST}; upgrade it")
        if settings.server_encoding != "UTF8":
            raise InvalidInput(f"{self.shown_url} stores no Unicode; make a database with createdb --encoding=UTF8")
        await driver.execute(
            f"SET statement_timeout = {self._options.statement_timeout_ms};"
            f"SET lock_timeout = {self._options.lock_timeout_ms};"
            # A process that is stopped inside a transaction must not hold its locks for ever.
            f"SET idle_in_transaction_session_timeout = {self._options.statement_timeout_ms};"
            "SET default_transaction_isolation = 'read committed';"
            "SET default_transaction_deferrable = off;"
            "SET jit = off;"
            # What is confirmed is on disk; a stronger setting, which waits for standbys too, is left as it is.
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        )


def _watch_over(driver: asyncpg.Connection[Row], server: Server, options: PostgresqlOptions) -> None:
    """Let the operating system notice a server that is gone without a word."""
    connected: socket.socket | None = driver._transport.get_extra_info("socket")  # type: ignore[attr-defined]
    if (
        connected is None
        or connected.family not in (socket.AF_INET, socket.AF_INET6)
        or server.number("keepalives") == 0
    ):
        return
    idle_s = server.number("keepalives_idle") or options.keepalive_idle_s
    interval_s = server.number("keepalives_interval") or options.keepalive_interval_s
    count = server.number("keepalives_count") or options.keepalive_count
    unanswered_ms = server.number("tcp_user_timeout") or 1000 * (idle_s + interval_s * count)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPINTVL", interval_s),
        ("TCP_KEEPCNT", count),
        ("TCP_USER_TIMEOUT", unanswered_ms),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
