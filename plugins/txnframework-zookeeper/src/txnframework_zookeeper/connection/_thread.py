"""
kazoo's thread: how it connects, sends, waits and receives.

kazoo runs a thread for the connection, and by its own handler two more for callbacks. This handler has none besides the
first: what it receives goes from it into the loop (see ``_returns``). Nothing of this package runs on that thread for
longer than it takes to put something into a queue. While a connection stands it mostly sleeps: ``_direct`` does without
it.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import AuthFailedError, ConnectionDropped, ConnectionLoss, SessionClosedRequireSaslError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Watch as WatchEvent

from txnframework_zookeeper.connection._roles import Role, role_of
from txnframework_zookeeper.connection._wire import Bell, Wire

_ASK_S = 1.0
_TOGETHER_MAX = 64
_READ_PART = 2 / 3
"""kazoo waits for an answer for this part of the session's timeout."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection is there and its login done; a new session if its number is another."""

    session_id: int
    password: bytes = field(repr=False)
    timeout_ms: int
    role: Role


@dataclass(frozen=True, slots=True)
class Changed:
    """A watched node, or one below a watched one, was made, written or removed; its whole path."""

    path: str


@dataclass(frozen=True, slots=True)
class Ended:
    """kazoo's thread is at its end: it was stopped, the login was refused, or it met something it did not expect."""

    error: BaseException | None


class ThreadHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """What kazoo asks for sockets, and for waiting at them; ``lock``: see ``Connection``."""

    def __init__(self, attempt_s: float, tls: ssl.SSLContext | None, lock: AbstractContextManager[Any]) -> None:
        super().__init__()
        self._tls = tls
        self._lock = lock
        self.last_error: BaseException | None = None
        self._attempt_s = attempt_s

    def start(self) -> None:
        """Start no thread: there are no callbacks to run."""
        self._running = True

    def stop(self) -> None:
        """Stop nothing."""
        self._running = False

    def dispatch_callback(self, callback: object) -> None:
        """Drop it: this package gives kazoo none."""

    def create_socket_pair(self) -> tuple[Bell, Bell]:
        """Return what kazoo rings when there is something to send."""
        bell = Bell()
        return bell, bell

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: object) -> Wire:
        """Return a connected socket."""
        try:
            connected = self._connected(address, hostname, min(timeout, self._attempt_s))
            return Wire(connected, timeout * _READ_PART, self._lock)
        except OSError as error:
            self.last_error = error
            raise

    def _connected(self, address: tuple[str, int], hostname: str, timeout_s: float) -> socket.socket:
        connected = socket.create_connection(address, timeout_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(connected, server_hostname=hostname) if self._tls else connected
        except BaseException:
            connected.close()
            raise

    def select(self, read: list[Any], write: list[Any], _: list[Any], timeout: float | None = None) -> Any:
        """Return which of the sockets have something to read; writing is always possible."""
        if write:
            return [], write, []
        with self._lock:
            ready = [end for end in read if end.is_ready()]
        if ready:
            return ready, [], []
        return self._poll(read, timeout), [], []

    def _poll(self, read: list[Any], timeout_s: float | None) -> list[Any]:
        wire = read[0]
        assert isinstance(wire, Wire)
        wire.flush()
        patience_s = max(0.0, wire.patience_s())
        found = _readable(
            [end for end in read if end is not wire or not wire.is_lent],
            patience_s if timeout_s is None else min(timeout_s, patience_s),
        )
        if not found:
            # A loop that is held up reads nothing: neither is the server silent then, nor may the session end for it.
            found = _readable([wire], 0)
        if not found:
            wire.require_patience()
        return found


def _readable(ends: list[Any], wait_s: float) -> list[Any]:
    poll = select.poll()
    by_number = {end.fileno(): end for end in ends}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(wait_s * 1000)]


class Connection(ConnectionHandler):  # type: ignore[misc]
    """
    kazoo's connection, with what it does not tell: the timeout agreed on, and events of recursive watches.

    ``lock``: whoever holds it alone gives numbers to requests, reads answers, and says that the connection has ended.
    """

    def __init__(self, client: Any, retry: Any, lock: Any, login: dict[str, str] | None) -> None:
        super().__init__(client, retry, logger=client.logger, sasl_options=login)
        self.receive: Callable[[Connected | Changed | Ended], None] = lambda _: None
        self._lock = lock
        self._is_ready = False
        self._has_logged_in = False
        self._role = Role.UNKNOWN
        self._leaves_leader = 0

    def cut(self) -> None:
        """End the connection, from any thread; the session goes on in the next one."""
        wire = self._socket
        if wire is not None:
            wire.cut()

    def together(self) -> AbstractContextManager[None]:
        """Wake kazoo's thread once, at the end, for all that it is given meanwhile; in one thread at a time."""
        bell = self._write_sock
        return bell.held() if isinstance(bell, Bell) else nullcontext()

    def ring(self) -> None:
        """Let kazoo's thread look at the wire, and at what it was given."""
        bell = self._write_sock
        if bell is not None:
            with suppress(OSError):
                bell.send(b"\0")

    def lendable(self) -> Wire | None:
        """Return the wire of a connection that stands, if an event loop can wait for it; under the lock."""
        wire = self._socket
        is_there = self._is_ready and isinstance(wire, Wire) and not wire.is_closed and wire.can_be_lent
        return wire if is_there else None

    def take_answers(self) -> object:
        """Take all that came; return what kazoo returns for an answer that ends the connection. Under the lock."""
        wire = self._socket
        if wire.failure is not None:
            raise wire.failure
        if not wire.has_message():
            with self._socket_error_handling(), suppress(BlockingIOError, ssl.SSLWantReadError):
                if not wire.fill():
                    raise ConnectionDropped("socket connection broken")
        response: object = None
        while response is None and wire.has_message():
            response = super()._read_socket(wire.silence_s)
        return response

    def zk_loop(self) -> None:
        """Be connected until it is stopped."""
        error: BaseException | None = None
        try:
            super().zk_loop()
        except Exception as unexpected:
            error = unexpected
        finally:
            self.receive(Ended(error))

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        hosts: list[tuple[str, str, int]] = super()._expand_client_hosts()
        if not hosts:
            self.handler.last_error = OSError("no address is known of any of these hosts")
        # Once around without the leader, then again with it.
        self._leaves_leader = len(hosts)
        return hosts * 2

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        self._is_ready = False
        self._role = self._ask(host, hostip, port)
        self._leaves_leader -= 1
        if self._leaves_leader >= 0 and self._role is Role.LEADER:
            return None
        return super()._connect_attempt(host, hostip, port, retry)

    def _ask(self, host: str, hostip: str, port: int) -> Role:
        try:
            wire = self.handler.create_connection((hostip, port), host, _ASK_S)
        except OSError:
            return Role.UNKNOWN
        try:
            return role_of(wire)
        finally:
            wire.close()

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        read_timeout_ms, connect_timeout_ms = super()._connect(host, hostip, port)
        self._socket.silence_s = read_timeout_ms / 1000
        self.handler.last_error = None
        self._has_logged_in = True
        self._is_ready = True
        client = self.client
        timeout_ms = round(read_timeout_ms / _READ_PART)
        self.receive(Connected(client._session_id, client._session_passwd, timeout_ms, self._role))
        return read_timeout_ms, connect_timeout_ms

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            super()._authenticate_with_sasl(host, timeout)
        except AuthFailedError as error:
            # kazoo never tries again after it. What was right once is not wrong because a connection broke.
            if self._has_logged_in and isinstance(error.__cause__, ConnectionDropped):
                raise ConnectionDropped("the connection broke during the login") from error
            raise
        except SessionClosedRequireSaslError as error:
            # So says a server that lets nobody in without a login; to kazoo it is unforeseen.
            raise AuthFailedError("the login was refused") from error

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Send all that kazoo was told of; it would look for an answer, and at the time, between any two."""
        with self._lock:
            for _ in range(min(self._read_sock.pending(), _TOGETHER_MAX)):
                super()._send_request(read_timeout, connect_timeout)
        self._socket.flush()

    def _read_socket(self, read_timeout: float) -> object:  # noqa: ARG002
        """Take all answers that came, and wait for none."""
        with self._lock:
            return self.take_answers()

    def _read(self, length: int, timeout: float) -> bytes:
        """Return so many bytes; to ask whether they are there takes kazoo longer than to take them."""
        wire = self._socket
        found: bytes = wire.recv(length) if length and wire.has(length) else super()._read(length, timeout)
        return found

    def _write(self, msg: bytes, timeout: float) -> None:  # noqa: ARG002
        """Send all of it; a wire takes it all, and waits by itself."""
        with self._lock:
            self._socket.send(msg)

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> object:
        """Take an answer; whoever asked is told even if kazoo does not know what it means, and the connection ends."""
        pending = self.client._pending
        flight = pending[0][1] if pending else None
        try:
            return super()._read_response(header, buffer, offset)
        except Exception:
            # kazoo has forgotten the request by now, and would leave it out when it tells the others.
            if flight is not None:
                flight.set_exception(ConnectionLoss())
            raise

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = WatchEvent.deserialize(buffer, offset)
        self.receive(Changed(event.path))
