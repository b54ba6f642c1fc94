"""The connections of one event loop to one database, lent from the driver's pool."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar, cast

import asyncpg
import msgspec

from txnframework.environment import Environment
from txnframework.errors import Closed, OutcomeUnknown, Unavailable
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import start_task
from txnframework_sql._options import PostgresqlOptions
from txnframework_sql.postgresql._connection import Connection, Driver, Row, uncertain_writes
from txnframework_sql.postgresql._errors import POSTGRESQL_ERRORS, RetryableConflict
from txnframework_sql.postgresql._listener import Listener
from txnframework_sql.postgresql._notifier import Notifier
from txnframework_sql.postgresql._server import Server
from txnframework_sql.postgresql._setup import connect
from txnframework_sql.steps.statements import Observer

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

# The first retry is immediate, because the conflicting transaction has ended. Later pauses are random up to this limit,
# which doubles each time.
_FIRST_PAUSE_MS = 4
_LONGEST_PAUSE_MS = 1_000
# How long the server may take to answer a close.
_CLOSE_S = 1


class _PooledDriver(Driver):
    """A connection of the driver's pool, with its ``Connection``."""

    connection: Connection


class _LentConnection(NamedTuple):
    """A lent connection, as the driver's pool and this package represent it."""

    pooled: Any
    connection: Connection


class Pool:
    """
    Connections, used in the event loop and the process in which they were made.

    They are opened on first use and then kept. A lost connection is replaced, before anything is sent over it where the
    loss can be detected. A connection that was unused for ``keepalive_idle_s`` must answer first.

    :raises Closed: the pool was closed, this process was forked from its owner, or this is another event loop.
    """

    def __init__(
        self,
        server: Server,
        environment: Environment,
        options: PostgresqlOptions,
        source: Pool | None = None,
        reply_timeout_s: float = math.inf,
    ) -> None:
        # The pool that makes the connections, with its schema and its log.
        self._source = source or self
        # The time limit for a reply, if it is shorter than that of the options.
        self._reply_timeout_s = reply_timeout_s
        self.server = server
        self.shown_url = server.shown_url
        self._environment = environment
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self.observers: dict[Observer, None] = {} if source is None else source.observers
        """Called after every commit of this pool, and of those apart from it."""
        self.listener = Listener(self.connect, server.shown_url, environment, options, lambda: self.notifier.server_pid)
        """Receives notifications of other processes' commits; closed with the pool."""
        own = Notifier(self._connect_apart, lambda: self.channel, environment, options)
        self.notifier: Notifier = own if source is None else source.notifier
        """Notifies other processes of commits; closed with the pool that made it."""
        self.append_slots = asyncio.Semaphore(max(1, options.connections_max - 1))
        """
        Held by appends while they use a connection.

        Appends wait for the locks of many ledgers. The semaphore leaves one of several connections to other operations.
        """
        self.stores = 0
        """The number of stores that share the pool; see ``OpenPools``."""
        self._pool: asyncpg.Pool[Row] | None = None
        # Acquired from the driver's pool and unused. To return one takes several turns of the event loop, which cost as
        # much as a statement. While a caller waits for the pool, none is kept.
        self._unused: list[_LentConnection] = []
        self._waiting = 0
        # Callers that have a connection or wait for one, and connections that are being returned.
        self._user_count = 0
        self._has_no_users = asyncio.Event()
        self._has_no_users.set()
        self._settling: set[asyncio.Task[None]] = set()
        # The tasks among them that were executing a write.
        self._deciding: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None
        self._schema = ""
        self._was_connected = self._is_away = False
        # The URLs that keep sessions, also through a pooler.
        self._checked: set[str] = set()

    @property
    def channel(self) -> str:
        """The channel on which changes are notified and received; see ``notify_on``."""
        return self.listener.channel

    @property
    def schema(self) -> str:
        """The schema of the tables, which the first connection decides."""
        return self._schema

    def apart(self, reply_timeout_s: float) -> Pool:
        """
        Return a pool of one other connection, for what may not wait for this one; the caller closes it before.

        :param reply_timeout_s: the connection is given up without a reply in this time.
        """
        options = msgspec.structs.replace(self._options, connections_max=1)
        return Pool(self.server, self._environment, options, self._source, reply_timeout_s)

    def notify_on(self, channel: str) -> None:
        """Notify changes on the schema's channel, and listen on it."""
        self.listener.listen_on(channel)

    def require_open(self) -> None:
        """Raise Closed if the pool can no longer be used, or belongs to another process or event loop."""
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
        Lend a connection for the block; wait while all of ``connections_max`` are lent.

        A statement that the block leaves running, because it was cancelled, is ended before the next caller gets the
        connection. A write of unknown outcome is decided before the next caller gets any connection.

        :raises Unavailable: connecting failed, or a write of unknown outcome cannot be decided; nothing was sent.
        """
        lent = await self._take()
        try:
            yield lent.connection
        finally:
            await self._give_back(lent)

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """
        Return the result of ``work``; restart it after a conflict with another writer, at most ``retries_max`` times.

        ``work`` changes data only through the connection that it is given.
        """
        for attempt in range(self._options.retries_max + 1):
            if attempt > 1:
                await Backoff(self._environment, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS).pause(attempt + 1)
            try:
                # Without ``lend``: a context manager would be a measurable part of the cost of a single-record
                # statement.
                lent = await self._take()
                try:
                    return await work(lent.connection)
                finally:
                    await self._give_back(lent)
            except RetryableConflict as error:
                if attempt == self._options.retries_max:
                    raise error.final_error from error
            except OutcomeUnknown:
                self.notifier.send_anything()
                raise
        raise AssertionError("unreachable")

    async def connect(self, **arguments: Any) -> Connection:
        """
        Return a connection outside the pool, with the same setup; for the listener.

        A server that stops answering is logged once, and so is its return: a caller that only waits would not notice.
        """
        self.require_open()
        return await self._connect_apart(**arguments)

    async def _connect_apart(self, **arguments: Any) -> Connection:
        """Return a connection outside the pool, also while the pool is closing; for the notifier."""
        try:
            connection = await connect(self.server, self._options, self._checked, **arguments)
        except Unavailable as error:
            if self._was_connected and not self._is_away:
                self._is_away = True
                _LOG.warning("%s; waiting operations continue when the server answers again", error)
            raise
        self._was_connected = True
        if self._is_away:
            self._is_away = False
            _LOG.warning("%s answers again", self.shown_url)
        return connection

    async def close(self) -> None:
        """Finish the running operations and close every connection, even if the caller is cancelled; idempotent."""
        self._is_closed = True
        if self._process != os.getpid() or self._loop is not asyncio.get_running_loop():
            # Connections of a parent process or of another loop are not touched.
            return
        if self._closing is None:
            self._closing = start_task(self._close(), name="txnframework-sql closing")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self.listener.close()
        # Each statement ends by its timeout.
        await self._has_no_users.wait()
        if self._source is self:
            await self.notifier.close()
        while self._unused:
            await self._release(self._unused.pop())
        if self._pool is not None:
            with suppress(*POSTGRESQL_ERRORS):
                await asyncio.wait_for(self._pool.close(), _CLOSE_S)

    async def _connect_to_source(self, *_: object, **arguments: Any) -> _PooledDriver:
        driver = await self._source._connect_for_pool(**arguments)
        driver.connection.reply_timeout_s = min(driver.connection.reply_timeout_s, self._reply_timeout_s)
        return driver

    async def _connect_for_pool(self, **arguments: Any) -> _PooledDriver:
        connection = await self.connect(**arguments)
        self.listener.retry_now()
        # The first connection decides. A schema with the user's name that is created later would come first in the
        # search path.
        self._schema = connection.schema = self._schema or connection.schema
        driver = cast(_PooledDriver, connection.driver)
        driver.connection = connection
        return driver

    async def _take(self) -> _LentConnection:
        self.require_open()
        self._user_count += 1
        self._has_no_users.clear()
        try:
            while True:
                lent = self._unused.pop() if self._unused else await self._acquire()
                if await self._is_fit(lent.connection):
                    return lent
                await self._release(lent)
        except BaseException:
            self._leave()
            raise

    async def _acquire(self) -> _LentConnection:
        if self._pool is None:
            # Opens no connection yet, and therefore does not wait.
            self._pool = await asyncpg.create_pool(
                min_size=0,
                max_size=self._options.connections_max,
                connect=self._connect_to_source,
                connection_class=_PooledDriver,
                reset=_skip_reset,
            )
        self._waiting += 1
        try:
            pooled: Any = await self._pool.acquire()
        finally:
            self._waiting -= 1
        return _LentConnection(pooled, pooled.connection)

    async def _is_fit(self, connection: Connection) -> bool:
        """
        Return whether a connection may be lent; no earlier write is undecided then.

        On an error, the connection is terminated first, which returns it to the driver's pool.
        """
        try:
            if self._is_closed:
                self.require_open()
            if self._deciding:
                await asyncio.wait(self._deciding)
            silent_s = self._loop.time() - connection.last_used_s
            if connection.last_used_s and silent_s > self._options.keepalive_idle_s:
                await connection.ping(self._options.keepalive_interval_s * self._options.keepalive_count)
            is_asked = uncertain_writes.are_there and not connection.is_lost
            if is_asked and await uncertain_writes.end(self.server, connection):
                self.notifier.send_anything()
        except BaseException:
            connection.terminate()
            raise
        return not connection.is_lost

    async def _give_back(self, lent: _LentConnection) -> None:
        """
        Return a connection; a busy one is returned in a separate task, because its caller may have been cancelled.
        """
        connection = lent.connection
        if connection.is_in_doubt:
            uncertain_writes.add(self.server, connection.backend)
        if connection.is_lost or connection.is_idle:
            connection.last_used_s = self._loop.time()
            try:
                if self._waiting or self._is_closed or connection.is_lost:
                    await self._release(lent)
                else:
                    self._unused.append(lent)
            finally:
                self._leave()
            return
        task = start_task(self._settle(lent), name="txnframework-sql settling")
        for tasks in (self._settling, self._deciding) if connection.is_in_doubt else (self._settling,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _settle(self, lent: _LentConnection) -> None:
        connection = lent.connection
        was_in_doubt = connection.is_in_doubt
        try:
            await connection.settle()
            is_decided = was_in_doubt and not connection.is_in_doubt
            if is_decided:
                self.notifier.send_anything()
            if is_decided and not uncertain_writes.settle(self.server, connection.backend):
                connection.terminate()
            await self._release(lent)
        except BaseException:
            connection.terminate()
            raise
        finally:
            self._leave()

    async def _release(self, lent: _LentConnection) -> None:
        assert self._pool is not None
        with suppress(*POSTGRESQL_ERRORS):
            await self._pool.release(lent.pooled)

    def _leave(self) -> None:
        self._user_count -= 1
        if not self._user_count:
            self._has_no_users.set()


async def _skip_reset(_: object) -> None:
    """Reset nothing: every caller leaves a connection unchanged."""
