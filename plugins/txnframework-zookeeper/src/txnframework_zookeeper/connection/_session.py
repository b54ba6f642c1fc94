"""A sequence of connections, and the state of the session."""

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
from txnframework_zookeeper.connection._bridge import Inbox, ServerRole
from txnframework_zookeeper.connection._connection import Connected, Connection, Disconnected
from txnframework_zookeeper.connection._requests import NO_CONNECTION, Exists, login_refused, translate_error

_LOG = logging.getLogger(__name__)

_RESTART_S = 1.0
_CLOSE_S = 5.0


class SessionState(Enum):
    """The state of the session, as reported to listeners."""

    NEW = "connected, and nothing of an earlier session is left"
    BACK = "connected again, in the session as it was; watches are gone"
    SUSPENDED = "the connection is lost; the session may go on or not"


class Listener(Protocol):
    """
    A receiver of session states and node changes, called in the event loop; it must not block.

    Requests that a listener makes when a connection is reported are sent before all that waited for the connection.
    """

    def session_state_changed(self, state: SessionState) -> None:
        """Handle a new state of the session."""

    def node_changed(self, path: str) -> None:
        """Handle a change of a watched node; the path includes the chroot."""


class ReplyFuture:
    """Receives the reply to a request, in the loop."""

    __slots__ = ("_slots", "answer")

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: asyncio.Semaphore | None = None) -> None:
        self._slots = slots
        self.answer: asyncio.Future[Any] = loop.create_future()

    def take(self, found: object) -> None:
        """Take the reply, or the error as a value."""
        slots, self._slots = self._slots, None
        if slots is not None:
            # Not earlier if the caller was cancelled: kazoo holds the request until now.
            slots.release()
        if not self.answer.done():
            self.answer.set_result(found)


class Session:
    """
    The connection to an ensemble, reopened after each loss, for the event loop in which it was opened.

    A caller that waits for the connection, or for writes of others, does not notice a loss. So the loss and the
    reconnection are logged.

    :raises Closed: it was closed, this process was forked from the one that opened it, or this is another event loop.
    """

    def __init__(self, servers: Servers, options: MetadataOptions) -> None:
        self.shown_url = servers.shown_url
        self.loop = asyncio.get_running_loop()
        self.session_id = 0
        self.timeout_ms = options.session_ttl_ms
        self.role = ServerRole.UNKNOWN
        self.may_be_stale = True
        self.connections = 0
        self.servers, self.options = servers, options
        self.resumed: tuple[int, bytes] | None = None
        self._process = os.getpid()
        self._inbox = Inbox(self.loop)
        self._connected = asyncio.Event()
        self._listeners: list[Listener] = []
        self._refusal: TxnFrameworkError | None = None
        self._was_lost = False
        self._is_closed = False
        self._connection: Connection | None = None
        self._stopping: set[asyncio.Future[None]] = set()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as this process knows."""
        return self._connected.is_set() and not self._is_closed

    @property
    def last_zxid(self) -> int:
        """The number of the last transaction whose effects this client has seen; 0: none."""
        return self._connection.last_zxid if self._connection is not None else 0

    def listen(self, listener: Listener) -> None:
        """Start reporting to ``listener``."""
        self._listeners.append(listener)

    def submit(self, request: Any, reply: Any, session_id: int | None = None) -> None:
        """
        Send a request after all earlier ones, and pass the reply to ``reply``.

        An error in LOST is no reply: the request takes effect before any later request, or never. With ``session_id``
        it is sent in this session or not at all.
        """
        assert self._connection is not None, "it was started"
        if session_id not in (None, self.session_id):
            self._inbox.put(reply.take, SessionExpiredError())
        else:
            self._connection.send(request, reply.take)

    async def wait_until_connected(self) -> None:
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
                f"there is no connection to {self.shown_url}: {error or 'no server accepted a session'}; start"
                " a majority of its servers, or correct hosts, ports and TLS"
            ) from error

    def require_open(self) -> None:
        """Raise Closed if this can no longer be used, or belongs to another process or event loop."""
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
        """Start to connect; a session that has not expired is resumed."""
        if not self._is_closed and self._process == os.getpid():
            self._connection = Connection(self.servers, self.options, self.resumed, self._inbox, self._receive)

    def node_changed(self, event: Any) -> None:
        """Handle a watch event of kazoo; one without a path reports that a connection and its watches are lost."""
        if event.path and not self._is_closed:
            for listener in tuple(self._listeners):
                listener.node_changed(event.path)

    def cut(self) -> None:
        """Break the connection, if there is one; it is reopened in the same session."""
        if self._connection is not None and self.is_connected:
            self._connection.bridge.cut()

    async def close(self) -> None:
        """End the session; idempotent."""
        await self._end(ends_session=True)

    async def abandon(self) -> None:
        """Close like a killed process: the session continues on the servers until it expires."""
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
            # kazoo's thread may still wait for the server, but its result is no longer needed.
            connection.bridge.cut()
        self._stop_connection(connection)
        try:
            _, left = await asyncio.wait(self._stopping, timeout=_CLOSE_S)
            if left:
                connection.bridge.cut()
                await asyncio.wait(left, timeout=_CLOSE_S)
        finally:
            connection.end()

    def _stop_connection(self, connection: Connection) -> None:
        stopped = connection.stop()
        self._stopping.add(stopped)
        stopped.add_done_callback(self._stopping.discard)

    def _receive(self, event: Connected | Disconnected) -> None:
        connection = self._connection
        if connection is None or self._is_closed:
            return
        if isinstance(event, Connected):
            # kazoo reports the connection before the login; the reply to a first request follows the login.
            probe = Exists(self.servers.root or "/")
            connection.send(probe, partial(self._accept_connection, event))
        else:
            self._handle_disconnect(connection, event)

    def _accept_connection(self, connected: Connected, answer: object) -> None:
        if self._is_closed or isinstance(answer, NO_CONNECTION):
            return
        if isinstance(answer, SessionClosedRequireSaslError):
            self._refuse(translate_error(answer, self.shown_url, "connect"))
            return
        assert self._connection is not None
        is_new = connected.session_id != self.session_id
        self.session_id, self.timeout_ms = connected.session_id, connected.timeout_ms
        self.resumed = connected.session_id, connected.password
        self.role = connected.role
        self.connections += 1
        self._connection.set_session_timeout(connected.timeout_ms)
        self._refusal = None
        # Whatever earlier connections have seen, this server may lag behind it.
        self.may_be_stale = True
        self._connected.set()
        if self._was_lost:
            self._was_lost = False
            _LOG.warning("%s answers again", self.shown_url)
        self._notify(SessionState.NEW if is_new else SessionState.BACK)

    def _handle_disconnect(self, connection: Connection, ended: Disconnected) -> None:
        was_connected = self.is_connected
        if was_connected:
            self._was_lost = True
            _LOG.warning("the connection to %s is lost, and is being made again", self.shown_url)
        self._connected.clear()
        self._notify(SessionState.SUSPENDED)
        # A login that was accepted before is not wrong because a connection broke during a later login.
        if ended.is_refused and self.resumed is None:
            self._refuse(login_refused(self.shown_url))
        self._stop_connection(connection)
        if was_connected:
            self.start()
        else:
            self.loop.call_later(_RESTART_S, self.start)

    def _refuse(self, refusal: TxnFrameworkError) -> None:
        self._refusal = refusal
        # Wake the callers that wait for the first connection.
        self._connected.set()
        self._connected.clear()

    def _last_error(self) -> BaseException | None:
        if self._connection is None:
            return None
        bridge = self._connection.bridge
        if not bridge.attempts:
            return OSError("no address is known of any of these hosts")
        return bridge.last_error

    def _notify(self, state: SessionState) -> None:
        for listener in tuple(self._listeners):
            listener.session_state_changed(state)
