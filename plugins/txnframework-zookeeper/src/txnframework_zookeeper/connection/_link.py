"""One connection after another, and what becomes of the session."""

from __future__ import annotations

import asyncio
import logging
import os
from enum import Enum
from functools import partial
from typing import Any, Protocol

from kazoo.exceptions import SessionClosedRequireSaslError, SessionExpiredError

from txnframework.errors import Closed, TxnFrameworkError, Unavailable
from txnframework_zookeeper._options import MetadataOptions, Servers
from txnframework_zookeeper.connection._connection import Connected, Connection, Ended
from txnframework_zookeeper.connection._handler import Inbox, Role
from txnframework_zookeeper.connection._requests import NO_CONNECTION, Exists, refused, translated

_LOG = logging.getLogger(__name__)

_RESTART_S = 1.0
_CLOSE_S = 5.0


class Session(Enum):
    """What became of the session; what a listener is told."""

    NEW = "connected, and nothing of an earlier session is left"
    BACK = "connected again, in the session as it was; watches are gone"
    SUSPENDED = "the connection is lost; the session may go on or not"


class Listener(Protocol):
    """
    What wants to know, in the event loop; it must not wait.

    What a listener asks when it is told of a connection goes before everything that waited for it.
    """

    def session_became(self, state: Session) -> None:
        """Take note of what became of the session."""

    def node_changed(self, path: str) -> None:
        """Take note of a change of a watched node; the path with the chroot."""


class Landing:
    """Where the answer to a request arrives, in the loop."""

    __slots__ = ("_room", "answer")

    def __init__(self, loop: asyncio.AbstractEventLoop, room: asyncio.Semaphore | None = None) -> None:
        self._room = room
        self.answer: asyncio.Future[Any] = loop.create_future()

    def take(self, found: object) -> None:
        """Take the answer, or the error as a value."""
        room, self._room = self._room, None
        if room is not None:
            # Not earlier, for a caller who was cancelled: the request is with kazoo until now.
            room.release()
        if not self.answer.done():
            self.answer.set_result(found)


class Link:
    """
    The connection to an ensemble, made again whenever it is lost, for the event loop in which it was opened.

    Who waits for it, or for what others write, would not learn that it is lost, so that is logged, and its end.

    :raises Closed: it was closed, this process was forked from the one that opened it, or this is another event loop.
    """

    def __init__(self, servers: Servers, options: MetadataOptions) -> None:
        self.shown_url = servers.shown_url
        self.loop = asyncio.get_running_loop()
        self.session_id = 0
        self.timeout_ms = options.session_timeout_ms
        self.role = Role.UNKNOWN
        self.may_lag = True
        self.connections = 0
        self.servers, self.options = servers, options
        self.resumed: tuple[int, bytes] | None = None
        self._process = os.getpid()
        self._inbox = Inbox(self.loop)
        self._connected = asyncio.Event()
        self._listeners: list[Listener] = []
        self._refusal: TxnFrameworkError | None = None
        self._is_cut_off = False
        self._is_closed = False
        self._connection: Connection | None = None
        self._ending: set[asyncio.Future[None]] = set()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as it is known here."""
        return self._connected.is_set() and not self._is_closed

    @property
    def seen_zxid(self) -> int:
        """The number of a transaction that this client has seen the effects of; 0: of none."""
        return self._connection.seen_zxid if self._connection is not None else 0

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` from now on."""
        self._listeners.append(listener)

    def hand_over(self, request: Any, landing: Any, session_id: int | None = None) -> None:
        """
        Send a request after those that were handed over before it, and tell ``landing`` once there is an answer.

        An error LOST is no answer: the request is done before anything that is handed over later, or never.
        With ``session_id`` it is sent in this session or never.
        """
        assert self._connection is not None, "it was started"
        if session_id not in (None, self.session_id):
            self._inbox.put(landing.take, SessionExpiredError())
        else:
            self._connection.send(request, landing.take)

    async def until_connected(self) -> None:
        """
        Return once there is a connection.

        :raises Unavailable: there was none for ``connect_timeout_ms``.
        """
        self.require_open()
        if self._connected.is_set():
            return
        try:
            async with asyncio.timeout(self.options.connect_timeout_ms / 1000):
                while not self._connected.is_set():
                    if self._refusal is not None:
                        raise self._refusal
                    await self._connected.wait()
                    self.require_open()
        except TimeoutError:
            error = self._last_error()
            raise Unavailable(
                f"there is no connection to {self.shown_url}: {error or 'what answers there begins no session'}; start"
                " a majority of its servers, or correct hosts, ports and TLS"
            ) from error

    def require_open(self) -> None:
        """Raise Closed if this cannot be used any more, or not here."""
        if self._is_closed:
            raise Closed(f"the store {self.shown_url} was closed")
        if self._process != os.getpid():
            raise Closed(
                f"the store {self.shown_url} was opened before this process was forked, and belongs to its parent;"
                " open it again here"
            )
        if asyncio.get_running_loop() is not self.loop:
            raise Closed(
                f"the store {self.shown_url} belongs to the event loop that opened it; open it again in this one"
            )

    def start(self) -> None:
        """Begin to connect; the session goes on if there was one and it lives."""
        if not self._is_closed and self._process == os.getpid():
            self._connection = Connection(self.servers, self.options, self.resumed, self._inbox, self._receive)

    def node_changed(self, event: Any) -> None:
        """Take note of an event of kazoo's; one without a path says that a connection and its watches are gone."""
        if event.path and not self._is_closed:
            for listener in tuple(self._listeners):
                listener.node_changed(event.path)

    def cut(self) -> None:
        """Break the connection, if there is one; it is made again, in the same session."""
        if self._connection is not None and self.is_connected:
            self._connection.handler.cut()

    async def close(self) -> None:
        """End the session; may be repeated."""
        await self._end(ends_session=True)

    async def abandon(self) -> None:
        """Let go as a process does that is killed: the session goes on at the servers until it expires."""
        await self._end(ends_session=False)

    async def _end(self, ends_session: bool) -> None:
        if self._is_closed:
            return
        was_connected = self.is_connected
        self._is_closed = True
        self._connected.set()
        connection = self._connection
        if self._process != os.getpid() or connection is None:
            return
        if not was_connected or not ends_session:
            # Whatever kazoo's thread waits for, it is nothing that is still needed.
            connection.handler.cut()
        self._dispose(connection)
        try:
            _, left = await asyncio.wait(self._ending, timeout=_CLOSE_S)
            if left:
                connection.handler.cut()
                await asyncio.wait(left, timeout=_CLOSE_S)
        finally:
            connection.end()

    def _dispose(self, connection: Connection) -> None:
        stopped = connection.stop()
        self._ending.add(stopped)
        stopped.add_done_callback(self._ending.discard)

    def _receive(self, event: Connected | Ended) -> None:
        connection = self._connection
        if connection is None or self._is_closed:
            return
        if isinstance(event, Connected):
            # kazoo says so before the login; the answer to a first request comes behind it.
            probe = Exists(self.servers.root or "/")
            connection.send(probe, partial(self._take_connection, event))
        else:
            self._take_end(connection, event)

    def _take_connection(self, connected: Connected, answer: object) -> None:
        if self._is_closed or isinstance(answer, NO_CONNECTION):
            return
        if isinstance(answer, SessionClosedRequireSaslError):
            self._refuse(translated(answer, self.shown_url, "connect"))
            return
        assert self._connection is not None
        is_new = connected.session_id != self.session_id
        self.session_id, self.timeout_ms = connected.session_id, connected.timeout_ms
        self.resumed = connected.session_id, connected.password
        self.role = connected.role
        self.connections += 1
        self._connection.agree_on(connected.timeout_ms)
        self._refusal = None
        # What this connection has seen is nothing, whatever the one before it had.
        self.may_lag = True
        self._connected.set()
        if self._is_cut_off:
            self._is_cut_off = False
            _LOG.warning("%s answers again", self.shown_url)
        self._tell(Session.NEW if is_new else Session.BACK)

    def _take_end(self, connection: Connection, ended: Ended) -> None:
        was_connected = self.is_connected
        if was_connected:
            self._is_cut_off = True
            _LOG.warning("the connection to %s is lost, and is being made again", self.shown_url)
        self._connected.clear()
        self._tell(Session.SUSPENDED)
        # What was right once is not wrong because a connection broke during the login.
        if ended.is_refused and self.resumed is None:
            self._refuse(refused(self.shown_url))
        self._dispose(connection)
        if was_connected:
            self.start()
        else:
            self.loop.call_later(_RESTART_S, self.start)

    def _refuse(self, refusal: TxnFrameworkError) -> None:
        self._refusal = refusal
        # Waiting is over for who waits for the first connection.
        self._connected.set()
        self._connected.clear()

    def _last_error(self) -> BaseException | None:
        if self._connection is None:
            return None
        handler = self._connection.handler
        if not handler.attempts:
            return OSError("no address is known of any of these hosts")
        return handler.last_error

    def _tell(self, state: Session) -> None:
        for listener in tuple(self._listeners):
            listener.session_became(state)
