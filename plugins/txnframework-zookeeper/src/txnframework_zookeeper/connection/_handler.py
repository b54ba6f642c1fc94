"""
The bridge from kazoo's thread to the event loop: a handler as kazoo documents it (``kazoo.interfaces.IHandler``).

Results, events of watches and states go into one inbox in the order in which the server sent them, and one wake-up of
the loop delivers all that came.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from struct import Struct
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import Callback

_ROLE_S = 1.0
_ANSWER_BYTES_MAX = 65_536
_PIECE_BYTES = 8_192
# The first answer: its length, the version of the protocol, the session's timeout.
_SESSION_HEAD = Struct("!iii")

ROLE_COMMAND = b"srvr"
"""The four-letter command whose answer tells a server's role; servers allow it unless they are told not to."""

_MODE = re.compile(rb"^Mode: (\w+)", re.MULTILINE)


class Role(Enum):
    """
    What a server is among the others, which decides what makes its answers current.

    A server by itself has applied what it confirmed. A follower that is asked to ``sync`` first has applied what its
    leader had committed by then. The leader itself may confirm a write, through a follower, before it has applied it,
    and ``sync`` does not wait for that: behind one, in a few reads out of ten thousand, it answers with what was
    before. Therefore a client connects to a leader only if it reaches no follower, and then its reads wait for a write
    that changes nothing.
    """

    ALONE = "standalone"
    FOLLOWER = "follower"
    LEADER = "leader"
    UNKNOWN = ""


_ROLES = {b"standalone": Role.ALONE, b"follower": Role.FOLLOWER, b"observer": Role.FOLLOWER, b"leader": Role.LEADER}


class Inbox:
    """What goes from other threads into the loop: in order, and with one wake-up for all that wait together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_waking = False

    def put(self, receive: Callable[[Any], None], what: Any) -> None:
        """Call ``receive`` in the loop, from any thread; nothing is kept once the loop is closed."""
        self._waiting.append((receive, what))
        if not self._is_waking or self._loop.is_closed():
            self._is_waking = True
            try:
                self._loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:
                # The loop was closed, perhaps with a wake-up on its way.
                self._waiting.clear()

    def deliver(self) -> None:
        """Deliver what waits; in the loop. The loop is told of a receiver that fails, and the next one goes on."""
        # First the mark, then the look: what is put in between has a wake-up of its own.
        self._is_waking = False
        while self._waiting:
            receive, what = self._waiting.popleft()
            try:
                receive(what)
            except Exception as error:
                context = {"message": "a receiver of what ZooKeeper sent failed", "exception": error}
                self._loop.call_exception_handler(context)


class Reply:
    """
    The answer to one request, as kazoo's IAsyncResult: kazoo calls ``set`` or ``set_exception``, sometimes twice.

    kazoo links the answers to those requests that it makes of another one; these are not for the loop.
    """

    __slots__ = ("_handler", "_links", "exception", "is_ready", "value")

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._links: list[Callable[[Reply], object]] = []
        self.value: Any = None
        self.exception: BaseException | None = None
        self.is_ready = False

    def set(self, value: object = None) -> None:
        """Take the answer."""
        self.value = value
        self._finish()

    def set_exception(self, exception: BaseException) -> None:
        """Take an error instead."""
        self.exception = exception
        self._finish()

    def get(self, block: bool = True, timeout: Any = None) -> Any:  # noqa: ARG002 - IAsyncResult's names
        """Return the answer, or raise the error; kazoo asks when it is there."""
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: Callable[[Reply], object]) -> None:
        """Call ``callback`` once the answer is there; twice if it comes at this moment."""
        self._links.append(callback)
        if self.is_ready:
            callback(self)

    def _finish(self) -> None:
        self.is_ready = True
        if self._links:
            for callback in self._links:
                callback(self)
        else:
            self._handler.inbox.put(self._handler.receive, self)


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler for one connection: it has no threads for callbacks, and makes no second connection."""

    def __init__(self, inbox: Inbox, attempt_s: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self.inbox = inbox
        self.receive: Callable[[Reply], None] = lambda _: None
        self.thread_ended: Callable[[BaseException | None], None] = lambda _: None
        self.is_over = False
        self.attempts = 0
        self.last_error: BaseException | None = None
        self.role = Role.UNKNOWN
        self.socket_in_use: SessionSocket | None = None
        self._attempt_s = attempt_s
        self._tls = tls
        self._leaders_left: set[Any] = set()

    def start(self) -> None:
        """Start no threads."""

    def stop(self) -> None:
        """Stop nothing."""

    def async_result(self) -> Reply:
        """Return what kazoo gives the answer to a request to."""
        return Reply(self)

    def dispatch_callback(self, callback: Callback) -> None:
        """Tell a watcher in the loop; kazoo calls each of them with one event."""
        self.inbox.put(callback.func, *callback.args)

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        """Run kazoo's loop on a thread; what it did not expect ends the thread, and is reported."""
        thread: threading.Thread = super().spawn(self._run, func, *args, **kwargs)
        return thread

    def _run(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> None:
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
        Return which sockets are ready; of what was encrypted, more may have come than the kernel shows.

        kazoo waits several times for each request, and its own handler makes an epoll object for each of them.
        """
        decrypted = [one for one in read if isinstance(one, SessionSocket) and one.has_decrypted()]
        if decrypted:
            return decrypted, [], []
        poll = select.poll()
        for events, sockets in ((select.POLLIN, read), (select.POLLOUT, write)):
            for one in sockets:
                poll.register(one, events)
        ready = {number for number, _ in poll.poll(None if timeout is None else timeout * 1000)}
        return [one for one in read if one.fileno() in ready], [one for one in write if one.fileno() in ready], []

    def create_connection(self, address: Any, hostname: str = "", **_: Any) -> Any:
        """
        Connect to a server; the first time in vain if it is a leader, in case there are followers.

        :raises OSError: it could not be reached, or this connection is over.
        """
        if self.is_over:
            raise OSError("this client of kazoo's has had its connection")
        self.attempts += 1
        try:
            self.role = self._ask_role(address, hostname)
            if self.role is Role.LEADER and address not in self._leaders_left:
                self._leaders_left.add(address)
                raise OSError("it leads the others, which are asked first")
            connected = self._connect(address, hostname, self._attempt_s)
        except OSError as error:
            self.last_error = error
            raise
        self.last_error = None
        self.socket_in_use = SessionSocket(connected)
        return self.socket_in_use

    @property
    def agreed_timeout_ms(self) -> int | None:
        """How long the servers keep the session without hearing from the client, once they have said so."""
        return self.socket_in_use.agreed_ms if self.socket_in_use is not None else None

    def cut(self) -> None:
        """End the connection, from any thread: kazoo finds it broken. The session goes on at the servers."""
        self.is_over = True
        if self.socket_in_use is not None:
            self.socket_in_use.cut()

    def _ask_role(self, address: Any, hostname: str) -> Role:
        answer = b""
        with suppress(OSError), self._connect(address, hostname, _ROLE_S) as asked:
            asked.sendall(ROLE_COMMAND)
            while len(answer) < _ANSWER_BYTES_MAX and (piece := asked.recv(_PIECE_BYTES)):
                answer += piece
        found = _MODE.search(answer)
        return _ROLES.get(found[1], Role.UNKNOWN) if found else Role.UNKNOWN

    def _connect(self, address: Any, hostname: str, timeout_s: float) -> socket.socket:
        """Connect; kazoo's own leaves a socket open where TLS fails."""
        connected = socket.create_connection(address, timeout_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(connected, server_hostname=hostname) if self._tls else connected
        except BaseException:
            connected.close()
            raise


class SessionSocket:
    """
    A connected socket with what kazoo calls of one, which reads along how long the servers keep the session.

    They may agree to less than was asked for, kazoo does not say so, and leases rely on it.
    """

    def __init__(self, connected: Any) -> None:
        self.agreed_ms: int | None = None
        self._socket = connected
        self._head = b""
        self.recv: Callable[[int], bytes] = self._recv_head
        self.send, self.close, self.fileno = connected.send, connected.close, connected.fileno
        self.setblocking, self.getpeername = connected.setblocking, connected.getpeername

    def pending(self) -> int:
        """Return how many bytes were decrypted already."""
        return self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0

    def has_decrypted(self) -> bool:
        """Whether there is something to read that the kernel does not show."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.fileno() >= 0 and self._socket.pending() > 0

    def cut(self) -> None:
        """End the connection, from any thread."""
        with suppress(OSError):
            # Not SSLSocket's own, which would let the other thread go on without encryption.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _recv_head(self, size: int) -> bytes:
        piece: bytes = self._socket.recv(size)
        self._head += piece
        if len(self._head) >= _SESSION_HEAD.size:
            self.agreed_ms = _SESSION_HEAD.unpack_from(self._head)[2]
            self.recv = self._socket.recv
        return piece
