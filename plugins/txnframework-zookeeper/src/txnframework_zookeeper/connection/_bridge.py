"""
The bridge from kazoo's thread to the event loop: a handler as kazoo documents it (``kazoo.interfaces.IHandler``).

kazoo's thread puts results, watch events and states into one queue, in the order in which the server sent them. Before
it waits for more, it wakes the loop once for all queued ones.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import Callback

from txnframework_zookeeper.connection._sockets import Doorbell, SessionSocket, wait_for_data, wait_for_room

_ROLE_S = 1.0
_ANSWER_BYTES_MAX = 65_536
_PIECE_BYTES = 8_192

ROLE_COMMAND = b"srvr"
"""The four-letter command whose reply contains a server's role; servers allow it by default."""

_MODE = re.compile(rb"^Mode: (\w+)", re.MULTILINE)


class ServerRole(Enum):
    """
    The role of a server in the ensemble, which decides how its replies are made current.

    A single server has applied its confirmed writes. A follower that first gets a ``sync`` has applied everything that
    its leader had committed by then.

    The leader itself may confirm a write, through a follower, before it has applied the write, and ``sync`` does not
    wait for that. After one, a few reads out of ten thousand return the earlier state. Therefore a client connects to a
    leader only if it reaches no follower. Its reads then wait for a write that changes nothing.
    """

    STANDALONE = "standalone"
    FOLLOWER = "follower"
    LEADER = "leader"
    UNKNOWN = ""


_SERVER_ROLES = {
    b"standalone": ServerRole.STANDALONE,
    b"follower": ServerRole.FOLLOWER,
    b"observer": ServerRole.FOLLOWER,
    b"leader": ServerRole.LEADER,
}


class Inbox:
    """A queue from other threads into the loop: in order, with one wake-up for all waiting items."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_waking = False

    def add(self, receive: Callable[[Any], None], what: Any) -> None:
        """Call ``receive`` in the loop after the next ``wake``, from any thread."""
        self._waiting.append((receive, what))

    def put(self, receive: Callable[[Any], None], what: Any) -> None:
        """Call ``receive`` in the loop, from any thread; after the end of the loop the item is dropped."""
        self._waiting.append((receive, what))
        self.wake()

    def wake(self) -> None:
        """Wake the loop if there are items and it is not being woken."""
        if self._waiting and (not self._is_waking or self._loop.is_closed()):
            self._is_waking = True
            try:
                self._loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:
                # The loop was closed, perhaps before a pending wake-up.
                self._waiting.clear()

    def deliver(self) -> None:
        """
        Deliver the waiting items, in the loop. A failing receiver is reported to the loop, and delivery continues.
        """
        # First clear the mark, then read: an item added in between causes a wake-up of its own.
        self._is_waking = False
        while self._waiting:
            receive, what = self._waiting.popleft()
            try:
                receive(what)
            except Exception as error:
                context = {"message": "a callback for a reply or event of ZooKeeper failed", "exception": error}
                self._loop.call_exception_handler(context)


class AsyncResult:
    """
    The reply to one request, as kazoo's IAsyncResult: kazoo calls ``set`` or ``set_exception``, sometimes twice.

    kazoo links the replies to requests that it makes for another request; these are not delivered to the loop.
    """

    __slots__ = ("_bridge", "_links", "exception", "is_ready", "value")

    def __init__(self, bridge: KazooBridge) -> None:
        self._bridge = bridge
        self._links: list[Callable[[AsyncResult], object]] = []
        self.value: Any = None
        self.exception: BaseException | None = None
        self.is_ready = False

    def set(self, value: object = None) -> None:
        """Set the reply."""
        self.value = value
        self._finish()

    def set_exception(self, exception: BaseException) -> None:
        """Set an error as the reply."""
        self.exception = exception
        self._finish()

    def get(self, block: bool = True, timeout: Any = None) -> Any:  # noqa: ARG002 - IAsyncResult's names
        """Return the reply, or raise the error; kazoo calls this when it has arrived."""
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: Callable[[AsyncResult], object]) -> None:
        """Call ``callback`` once the reply has arrived; twice if it arrives at this moment."""
        self._links.append(callback)
        if self.is_ready:
            callback(self)

    def _finish(self) -> None:
        self.is_ready = True
        if self._links:
            for callback in self._links:
                callback(self)
        else:
            self._bridge.deliver(self._bridge.receive, self)


class KazooBridge(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler for one connection: it has no threads for callbacks, and makes no second connection."""

    def __init__(self, inbox: Inbox, attempt_s: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self.inbox = inbox
        self.receive: Callable[[AsyncResult], None] = lambda _: None
        self.thread_ended: Callable[[BaseException | None], None] = lambda _: None
        self.is_over = False
        self.attempts = 0
        self.last_error: BaseException | None = None
        self.role = ServerRole.UNKNOWN
        self.socket_in_use: SessionSocket | None = None
        self._attempt_s = attempt_s
        self._thread = 0
        self._tls = tls
        self._leaders_left: set[Any] = set()

    def start(self) -> None:
        """Do nothing: there are no threads to start."""

    def stop(self) -> None:
        """Do nothing: there are no threads to stop."""

    def async_result(self) -> AsyncResult:
        """Return the object that receives the reply to a request."""
        return AsyncResult(self)

    def dispatch_callback(self, callback: Callback) -> None:
        """Call a watcher in the loop; kazoo passes one event to each call."""
        self.deliver(callback.func, *callback.args)

    def deliver(self, receive: Callable[[Any], None], what: Any) -> None:
        """Call ``receive`` in the loop; kazoo's thread wakes the loop when it has nothing else to do."""
        (self.inbox.add if threading.get_ident() == self._thread else self.inbox.put)(receive, what)

    def create_socket_pair(self) -> tuple[Doorbell, Doorbell]:
        """Return the two ends through which other threads wake kazoo's thread; called in the loop."""
        bell = Doorbell(asyncio.get_running_loop())
        return bell, bell

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        """Run kazoo's loop on a thread; an unexpected error ends the thread, and is reported."""
        thread: threading.Thread = super().spawn(self._run, func, *args, **kwargs)
        return thread

    def _run(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        self._thread = threading.get_ident()
        ended_by: BaseException | None = None
        try:
            func(*args, **kwargs)
        except Exception as error:
            ended_by = error
        finally:
            self.is_over = True
            self.inbox.put(self.thread_ended, ended_by)

    def select(self, read: list[Any], write: list[Any], other: list[Any], timeout: Any = None) -> Any:  # noqa: ARG002
        """
        Return the ready sockets.

        If their buffers have data, return immediately, without a system call.
        """
        if write:
            return [], write if wait_for_room(write[0], timeout) else [], []
        ready = [one for one in read if one.pending()]
        if not ready:
            self.inbox.wake()
            ready = wait_for_data(read, timeout)
        return ready, [], []

    def create_connection(self, address: Any, hostname: str = "", **_: Any) -> Any:
        """
        Connect to a server; the first attempt on a leader fails, so that followers are tried first.

        :raises OSError: the server could not be reached, or this connection has ended.
        """
        if self.is_over:
            raise OSError("this client has already used its connection")
        self.attempts += 1
        try:
            self.role = self._ask_role(address, hostname)
            if self.role is ServerRole.LEADER and address not in self._leaders_left:
                self._leaders_left.add(address)
                raise OSError("the server is the leader, and followers are tried first")
            connected = self._connect(address, hostname, self._attempt_s)
        except OSError as error:
            self.last_error = error
            raise
        self.last_error = None
        self.socket_in_use = SessionSocket(connected)
        return self.socket_in_use

    @property
    def agreed_timeout_ms(self) -> int | None:
        """The session timeout that the servers agreed to, or None before they have done so."""
        return self.socket_in_use.agreed_ms if self.socket_in_use is not None else None

    def cut(self) -> None:
        """Break the connection, from any thread: kazoo detects the loss. The session continues on the servers."""
        self.is_over = True
        if self.socket_in_use is not None:
            self.socket_in_use.cut()

    def _ask_role(self, address: Any, hostname: str) -> ServerRole:
        answer = b""
        with suppress(OSError), self._connect(address, hostname, _ROLE_S) as asked:
            asked.sendall(ROLE_COMMAND)
            while len(answer) < _ANSWER_BYTES_MAX and (piece := asked.recv(_PIECE_BYTES)):
                answer += piece
        found = _MODE.search(answer)
        return _SERVER_ROLES.get(found[1], ServerRole.UNKNOWN) if found else ServerRole.UNKNOWN

    def _connect(self, address: Any, hostname: str, timeout_s: float) -> socket.socket:
        """Connect; unlike kazoo's own function, this closes the socket if TLS fails."""
        connected = socket.create_connection(address, timeout_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(connected, server_hostname=hostname) if self._tls else connected
        except BaseException:
            connected.close()
            raise
