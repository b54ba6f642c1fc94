"""The connections of one event loop to one database: the driver's pool, and what is known of writes that it lost."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg

from txnframework.environment import Environment
from txnframework.errors import Closed, Unavailable
from txnframework.runtime.backoff import Backoff
from txnframework_sql.postgresql._connection import Connection, Driver, Row, connect
from txnframework_sql.postgresql._errors import POSTGRESQL_ERRORS, Rerun
from txnframework_sql.postgresql._listener import Listener
from txnframework_sql.postgresql._options import PostgresqlOptions
from txnframework_sql.postgresql._server import Server
from txnframework_sql.postgresql._uncertain_writes import uncertain_writes

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

# The first time at once: the one that was in the way has ended. Then between nothing and this, doubled each time.
_FIRST_PAUSE_MS = 4
_LONGEST_PAUSE_MS = 1_000
# How long the server may take to say goodbye.
_CLOSE_S = 1


class _PooledDriver(Driver):
    """A connection of the driver's pool, with ours."""

    connection: Connection


class Pool:
    """
    Connections, used in the event loop in which they were made, by the process that made them.

    They are connected when they are needed first and then kept. One that was lost is replaced, before anything is sent
    over it where that can be known: one that was unused for ``keepalive_idle_s`` has to answer first.

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
        self.crowd = asyncio.Semaphore(max(1, options.connections_max - 1))
        """
        Held by appends while they use a connection: waiting for the locks of as many ledgers, they leave one of several
        to the heartbeats without which every lease here would be lost.
        """
        self._pool: asyncpg.Pool[Row] | None = None
        # Callers that have a connection or wait for one, and connections on their way back.
        self._users = 0
        self._is_unused = asyncio.Event()
        self._is_unused.set()
        self._settling: set[asyncio.Task[None]] = set()
        # Those among them that were at a write.
        self._deciding: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._schema = ""
        self._was_connected = self._is_away = False

    @property
    def channel(self) -> str:
        """Where changes are notified and heard of; see ``notify_on``."""
        return self.listener.channel

    def notify_on(self, channel: str) -> None:
        """Notify changes on the channel of the schema, and hear of them there."""
        self.listener.listen_on(channel)

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

        What the block leaves under way, as one that is cancelled does, is ended before anybody else gets it. A write
        that it leaves in doubt is decided before anybody else gets any connection.

        :raises Unavailable: no connection comes about, or a write in doubt cannot be decided; nothing was sent.
        """
        lent, connection = await self._take()
        try:
            yield connection
        finally:
            await self._give_back(lent, connection)

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """
        Return what ``work`` returns; from its start again, ``retries_max`` times, when another writer was in the way.

        ``work`` changes nothing but by the connection that it is given.
        """
        for attempt in range(self._options.retries_max + 1):
            if attempt > 1:
                await Backoff(self._environment, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS).pause(attempt + 1)
            try:
                # Without ``lend``: a context manager is a part of what a statement of one record costs here.
                lent, connection = await self._take()
                try:
                    return await work(connection)
                finally:
                    await self._give_back(lent, connection)
            except Rerun as error:
                if attempt == self._options.retries_max:
                    raise error.if_always from error
        raise AssertionError("unreachable")

    async def connect(self, **arguments: Any) -> Connection:
        """
        Return a connection outside the pool, set up as all are; for the listener.

        A server that answers no more is logged once, and once that it answers again: a caller that only waits would
        not learn of it.
        """
        self.require_open()
        try:
            connection = await connect(self.server, self._options, **arguments)
        except Unavailable as error:
            if self._was_connected and not self._is_away:
                self._is_away = True
                _LOG.warning("%s; what waits goes on by itself when the server answers again", error)
            raise
        self._was_connected = True
        if self._is_away:
            self._is_away = False
            _LOG.warning("%s answers again", self.shown_url)
        return connection

    async def close(self) -> None:
        """Let go of every connection, after what is under way; may be repeated."""
        was_closed, self._is_closed = self._is_closed, True
        if was_closed or self._process != os.getpid() or self._loop is not asyncio.get_running_loop():
            # What belongs to a parent or to another loop is not touched.
            return
        await self.listener.close()
        # Each statement ends by its timeout.
        await self._is_unused.wait()
        if self._pool is not None:
            with suppress(*POSTGRESQL_ERRORS):
                await asyncio.wait_for(self._pool.close(), _CLOSE_S)

    async def _connect_for_pool(self, *_: object, **arguments: Any) -> Driver:
        connection = await self.connect(**arguments)
        self.listener.try_now()
        # The first one decides. A schema of the user's name that is made later comes first in the path.
        self._schema = connection.schema = self._schema or connection.schema
        connection.driver.connection = connection  # type: ignore[attr-defined]
        return connection.driver

    async def _take(self) -> tuple[Any, Connection]:
        """Return a connection of the pool, as the pool knows it and as ours."""
        self.require_open()
        if self._pool is None:
            # Connects to nothing yet, and so waits for nothing.
            self._pool = await asyncpg.create_pool(
                min_size=0,
                max_size=self._options.connections_max,
                connect=self._connect_for_pool,
                connection_class=_PooledDriver,
                reset=_keep,
            )
        self._users += 1
        self._is_unused.clear()
        try:
            return await self._acquire(self._pool)
        except BaseException:
            self._leave()
            raise

    async def _acquire(self, pool: asyncpg.Pool[Row]) -> tuple[Any, Connection]:
        while True:
            lent: Any = await pool.acquire()
            connection: Connection = lent.connection
            try:
                if self._is_closed:
                    self.require_open()
                if await self._is_fit(connection):
                    return lent, connection
            except BaseException:
                connection.terminate()
                raise

    async def _is_fit(self, connection: Connection) -> bool:
        """Whether a connection may be lent; nothing that was lost is undecided any more then."""
        if self._deciding:
            await asyncio.wait(self._deciding)
        silent_s = self._loop.time() - connection.last_used_s
        if connection.last_used_s and silent_s > self._options.keepalive_idle_s:
            patience_s = self._options.keepalive_interval_s * self._options.keepalive_count
            if not await connection.answers_within(patience_s):
                return False
        if uncertain_writes.are_there:
            await uncertain_writes.end(self.server, connection)
        return True

    async def _give_back(self, lent: Any, connection: Connection) -> None:
        """Give a connection back; one that is busy, in a task of its own: its caller may have been cancelled."""
        if connection.is_in_doubt:
            uncertain_writes.add(self.server, connection.backend)
        if connection.is_lost or connection.is_idle:
            connection.last_used_s = self._loop.time()
            try:
                await self._release(lent)
            finally:
                self._leave()
            return
        task = self._loop.create_task(self._settle(lent, connection), name="txnframework-sql settling")
        for tasks in (self._settling, self._deciding) if connection.is_in_doubt else (self._settling,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _settle(self, lent: Any, connection: Connection) -> None:
        was_in_doubt = connection.is_in_doubt
        try:
            await connection.settle()
            is_decided = was_in_doubt and not connection.is_in_doubt
            if is_decided and not uncertain_writes.settle(self.server, connection.backend):
                connection.terminate()
            await self._release(lent)
        except BaseException:
            connection.terminate()
            raise
        finally:
            self._leave()

    async def _release(self, lent: Any) -> None:
        assert self._pool is not None
        with suppress(*POSTGRESQL_ERRORS):
            await self._pool.release(lent)

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._is_unused.set()


async def _keep(_: object) -> None:
    """Reset nothing: every caller leaves a connection as it was."""


@dataclass(slots=True)
class _Shared:
    pool: Pool
    users: int = 0


@dataclass(slots=True)
class OpenPools:
    """
    Pools by event loop and database, each for as long as a store uses it.

    An event loop only ever looks at its own, so that threads do not meet here.
    """

    _shared: dict[Hashable, _Shared] = field(default_factory=dict)
    _left_to_parent: list[_Shared] = field(default_factory=list)

    def take(self, server: Server, environment: Environment, options: PostgresqlOptions, *, is_shared: bool) -> Pool:
        """Return the pool of a database, of this loop; to be given back."""
        if not is_shared:
            return Pool(server, environment, options)
        wanted = tuple(getattr(options, name) for name in PostgresqlOptions.__struct_fields__)
        key = (asyncio.get_running_loop(), server, id(environment), wanted)
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(Pool(server, environment, options))
        shared.users += 1
        return shared.pool

    async def give_back(self, pool: Pool) -> None:
        """Close a pool that no other store uses."""
        for key, shared in tuple(self._shared.items()):
            if shared.pool is pool:
                shared.users -= 1
                if shared.users:
                    return
                del self._shared[key]
                break
        await pool.close()

    def forget(self) -> None:
        """Begin anew in a child process: its parent's sockets are not to be touched, not even by closing them."""
        self._left_to_parent.extend(self._shared.values())
        self._shared = {}


# The one thing that all openings in a process have in common.
open_pools = OpenPools()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=open_pools.forget)
