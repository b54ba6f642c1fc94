"""The connections of one event loop to one database: a bounded pool, and what is done again when others interfere."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from txnframework.environment import Environment
from txnframework.errors import Closed, Unavailable
from txnframework.runtime.backoff import Backoff
from txnframework_sql.postgresql._connecting import Driver, connect
from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._doubts import backend_of, doubts
from txnframework_sql.postgresql._errors import Rerun
from txnframework_sql.postgresql._listener import Listener
from txnframework_sql.postgresql._options import PostgresqlOptions
from txnframework_sql.postgresql._url import Server

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

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
        self.crowd = asyncio.Semaphore(max(1, options.connections_max - 1))
        """
        Held by appends while they use a connection: waiting for the locks of as many ledgers, they leave one of several
        to the heartbeats without which every lease here would be lost.
        """
        self._idle: list[Connection] = []
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
        connection = await self._take()
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
                # Without ``lend``: a context manager is a part of what a statement of one record costs here.
                connection = await self._take()
                try:
                    return await work(connection)
                finally:
                    self._take_back(connection)
            except Rerun as error:
                if attempt == self._options.retries_max:
                    raise error.if_always from error
        raise AssertionError("unreachable")

    async def connect(self) -> Driver:
        """
        Return a connection outside the pool, set up as all are; for who listens.

        A server that answers no more is logged once, and once that it answers again: whoever only waits would not learn
        of it.
        """
        self.require_open()
        try:
            driver = await connect(self.server, self._options)
        except Unavailable as error:
            if self._was_connected and not self._is_away:
                self._is_away = True
                _LOG.warning("%s; what waits goes on by itself when the server answers again", error)
            raise
        self._was_connected = True
        if self._is_away:
            self._is_away = False
            _LOG.warning("%s answers again", self.shown_url)
        return driver

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
        self.require_open()
        await self._room.acquire()
        try:
            if self._is_closed:
                self.require_open()
            if self._deciding:
                await asyncio.wait(self._deciding)
            connection = await self._idle_or_new()
            if doubts.are_there:
                await self._end_doubts(connection)
        except BaseException:
            self._room.release()
            raise
        return connection

    async def _end_doubts(self, connection: Connection) -> None:
        try:
            await doubts.end(self.server, connection)
        except BaseException:
            connection.break_off()
            raise

    async def _idle_or_new(self) -> Connection:
        while self._idle:
            # The one used last: the others may be closed by whoever thinks they are forgotten.
            connection = self._idle.pop()
            if connection.is_idle:
                return connection
            connection.break_off()
        connection = Connection(await self.connect(), self.shown_url, self._options)
        self.listener.try_now()
        try:
            connection.backend, schema = await backend_of(connection)
            # The first one decides. Somebody may make a schema of the user's name later, which comes first in the path.
            self._schema = connection.schema = self._schema or schema
        except BaseException:
            connection.break_off()
            raise
        return connection

    def _take_back(self, connection: Connection) -> None:
        if connection.is_in_doubt:
            doubts.add(self.server, connection.backend)
        if connection.is_lost or connection.is_idle:
            self._put_back(connection)
            return
        task = self._loop.create_task(self._settle(connection), name="txnframework-sql settling")
        for tasks in (self._settling, self._deciding) if connection.is_in_doubt else (self._settling,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _settle(self, connection: Connection) -> None:
        was_in_doubt = connection.is_in_doubt
        try:
            await connection.settle()
            if was_in_doubt and not connection.is_in_doubt and not doubts.settle(self.server, connection.backend):
                connection.break_off()
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
        await Backoff(self._environment, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS).pause(attempt + 1)
