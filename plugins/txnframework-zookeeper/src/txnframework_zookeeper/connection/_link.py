"""One client of kazoo's after another: what is sent, what comes back, and what becomes of the session."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol

from kazoo.exceptions import SessionExpiredError
from kazoo.protocol.states import KeeperState

from txnframework.errors import Closed, TxnFrameworkError, Unavailable
from txnframework_zookeeper._options import MetadataOptions, Servers
from txnframework_zookeeper.connection._direct import Direct
from txnframework_zookeeper.connection._errors import NotSent, refused
from txnframework_zookeeper.connection._kazoo import new_client
from txnframework_zookeeper.connection._returns import Flight, Returns
from txnframework_zookeeper.connection._roles import Role
from txnframework_zookeeper.connection._thread import Changed, Connected, Ended

_LOG = logging.getLogger(__name__)

_RESTART_S = 1.0
_STOP_S = 10.0


class Session(Enum):
    """What became of the session; what a listener is told."""

    NEW = "connected, and nothing of an earlier session is left"
    BACK = "connected again, in the session as it was; watches are gone"
    SUSPENDED = "the connection is lost; the session may go on or not"
    LOST = "the session has ended, and what lived with it"


class Listener(Protocol):
    """
    What wants to know, in the event loop; it must not wait.

    What a listener hands over when it is told of a connection goes before everything that waited for it.
    """

    def session_became(self, state: Session) -> None:
        """Take note of what became of the session."""

    def node_changed(self, path: str) -> None:
        """Take note of a change of a watched node, or of one below a watched one; the path with the chroot."""


class Landing:
    """Where the answer to a request arrives, in the loop; kazoo may answer twice."""

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
        self._servers, self._options = servers, options
        self._process = os.getpid()
        self._returns = Returns(self.loop)
        self._connected = asyncio.Event()
        self._listeners: list[Listener] = []
        self._unsent: list[tuple[object, Any, int | None]] = []
        self._refusal: TxnFrameworkError | None = None
        self._is_cut_off = False
        self._is_closed = False
        # A request and the end of a session must not pass each other: kazoo would then drop the request unanswered, or
        # send it in the next session.
        self._lock = threading.RLock()
        self._client: Any = None
        self._direct: Direct | None = None
        self._resumed: tuple[int, bytes] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as anybody here knows."""
        return self._connected.is_set() and not self._is_closed

    @property
    def seen_zxid(self) -> int:
        """The number of a transaction that this client has seen the effects of, in this session; 0: of none."""
        return int(self._client.last_zxid)

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` from now on."""
        self._listeners.append(listener)

    def hand_over(self, request: object, landing: Any, session_id: int | None = None) -> None:
        """
        Send a request after those that were handed over before it, and tell ``landing`` once there is an answer.

        An error LOST is no answer: the request is done before anything that is handed over later, or never.
        With ``session_id`` it is sent in this session or never.
        """
        self._unsent.append((request, landing, session_id))
        if not (self._client._pending or self._client._queue):
            self.send()
        elif len(self._unsent) == 1:
            # With what else is handed over in this turn of the loop: kazoo's thread is woken once for all of it.
            self.loop.call_soon(self.send)

    def send(self) -> None:
        """Send what was handed over now, and not at the end of this turn of the loop."""
        unsent, self._unsent = self._unsent, []
        with self._lock, self._client._connection.together():
            direct = self._direct if self._direct is not None and self._direct.is_open else None
            for request, landing, session_id in unsent:
                flight = Flight(self._returns, landing.take)
                if self._client._state == KeeperState.CONNECTING:
                    # kazoo would keep it until there is a connection, for however long that takes.
                    flight.set_exception(NotSent())
                elif session_id not in (None, self._client._session_id):
                    flight.set_exception(SessionExpiredError())
                elif direct is not None:
                    direct.send(request, flight)
                else:
                    self._client._call(request, flight)
            if direct is not None:
                direct.flush()

    async def until_connected(self) -> None:
        """
        Return once there is a connection.

        :raises Unavailable: there was none for ``connect_timeout_ms``.
        """
        self.require_open()
        if self._connected.is_set():
            return
        try:
            async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                while not self._connected.is_set():
                    if self._refusal is not None:
                        raise self._refusal
                    await self._connected.wait()
                    self.require_open()
        except TimeoutError:
            error = self._client.handler.last_error
            reason = error or "what answers there begins no session"
            raise Unavailable(
                f"there is no connection to {self.shown_url}: {reason}; start a majority of its servers, or correct"
                " hosts, ports and TLS"
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
        client = new_client(self._servers, self._options, self._resumed, self._lock)

        def moved(_: object) -> None:
            with self._lock:
                state = client._state
            self._returns.put(self._take, (client, state))

        def receive(event: Connected | Changed | Ended) -> None:
            self._returns.put(self._take, (client, event))

        client.add_listener(moved)
        client._connection.receive = receive
        self._client, self._direct = client, Direct(client, self._returns, self._lock)
        client.start_async()

    def cut(self) -> None:
        """Break the connection; it is made again, in the same session."""
        self._client._connection.cut()

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
        client = self._client
        if self._process != os.getpid() or client is None:
            return
        # What was handed over before goes before the end of the session.
        self.send()
        if self._direct is not None:
            self._direct.end()
        if not ends_session:
            client._stopped.set()
        if not was_connected or not ends_session:
            # Whatever kazoo's thread waits for, it is nothing that is still needed.
            client._connection.cut()
        await asyncio.to_thread(_stop, client)

    def _take(self, taken: tuple[Any, object]) -> None:
        client, event = taken
        if client is not self._client or self._is_closed:
            return
        match event:
            case Changed():
                for listener in tuple(self._listeners):
                    listener.node_changed(event.path)
            case Connected():
                self._take_connection(event)
            case KeeperState.CONNECTING:
                self._suspend()
            case KeeperState.EXPIRED_SESSION:
                self._connected.clear()
                self._tell(Session.LOST)
            case KeeperState.AUTH_FAILED:
                self._refusal = refused(self.shown_url)
                self._suspend()
                # Waiting is over for who waits for the first connection.
                self._connected.set()
                self._connected.clear()
            case Ended():
                # A login that was right before, or something unforeseen: again, in the session as it was. What the
                # new client has seen is nothing.
                self.may_lag = True
                self._suspend()
                client.close()
                self.loop.call_later(_RESTART_S, self._restart, client)

    def _take_connection(self, connected: Connected) -> None:
        is_new = connected.session_id != self.session_id
        self.session_id, self.timeout_ms = connected.session_id, connected.timeout_ms
        self._resumed = (connected.session_id, connected.password)
        self.role = connected.role
        self.connections += 1
        self._refusal = None
        self.may_lag = self.may_lag or is_new
        if self._direct is not None:
            self._direct.begin()
        self._connected.set()
        if self._is_cut_off:
            self._is_cut_off = False
            _LOG.warning("%s answers again", self.shown_url)
        self._tell(Session.NEW if is_new else Session.BACK)

    def _suspend(self) -> None:
        if self.is_connected:
            self._is_cut_off = True
            _LOG.warning("the connection to %s is lost, and is being made again", self.shown_url)
        self._connected.clear()
        self._take_back()
        self._tell(Session.SUSPENDED)

    def _take_back(self) -> None:
        """Take from kazoo what was handed over after the connection was lost, and before that was known here."""
        with self._lock:
            # If there is a connection again by now, kazoo's thread waits for the lock to say so, or is sending them.
            if self._client._state == KeeperState.CONNECTING:
                unsent = self._client._queue
                while unsent:
                    _, flight = unsent.popleft()
                    flight.set_exception(NotSent())

    def _restart(self, client: Any) -> None:
        if client is self._client and not self._is_closed and self._process == os.getpid():
            self.start()

    def _tell(self, state: Session) -> None:
        for listener in tuple(self._listeners):
            listener.session_became(state)


def _stop(client: Any) -> None:
    # A connection that ended by itself, as one does whose login was refused, may be gone by now; kazoo then finds
    # nothing to ring at, after it has stopped.
    with suppress(AttributeError):
        client.stop()
    # It waits for nothing where the session is left alone; then too its thread has to end before it is closed.
    client._connection.stop(_STOP_S)
    client.close()
