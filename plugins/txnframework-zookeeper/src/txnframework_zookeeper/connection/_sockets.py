"""
What kazoo's thread waits for: a connection to a server, and the requests of other threads.

During each system call of a thread, another Python thread runs, and the first thread then waits for its turn. kazoo
makes several calls for each request and each reply. These classes keep data in buffers, so that a few calls send all
waiting requests, or receive all replies that have arrived.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import threading
import time
from collections import deque
from contextlib import suppress
from struct import Struct
from typing import Any

# The first reply: its length, the protocol version, the session timeout.
_SESSION_HEAD = Struct("!iii")
_RECEIVE_BYTES = 65_536
_UNSENT_BYTES_MAX = 65_536


class SessionSocket:
    """
    A connected socket with the methods that kazoo calls, and with buffers; it also reads the agreed session timeout.

    The servers may agree to a shorter timeout than requested, and leases rely on it. kazoo has no public way to learn
    it: the client only logs it. So it is read from the first reply, whose format is fixed by ZooKeeper's protocol.
    """

    def __init__(self, connected: Any) -> None:
        self.agreed_ms: int | None = None
        self._socket = connected
        self._tls = connected if isinstance(connected, ssl.SSLSocket) else None
        self._head = b""
        self._received, self._read_bytes = b"", 0
        self._unsent = bytearray()
        self.close, self.fileno = connected.close, connected.fileno
        self.setblocking, self.getpeername = connected.setblocking, connected.getpeername

    def recv(self, size: int) -> bytes:
        """Return received bytes, at most ``size``; all that have arrived are taken from the kernel in one call."""
        if self._read_bytes == len(self._received):
            self._received, self._read_bytes = self._socket.recv(max(size, _RECEIVE_BYTES)), 0
            if self.agreed_ms is None:
                self._head += self._received
                if len(self._head) >= _SESSION_HEAD.size:
                    self.agreed_ms = _SESSION_HEAD.unpack_from(self._head)[2]
        start = self._read_bytes
        piece = self._received[start : start + size]
        self._read_bytes += len(piece)
        return piece

    def send(self, data: bytes | memoryview) -> int:
        """Take bytes that ``flush`` sends; kazoo first waits until there is room for them."""
        self._unsent += data
        return len(data)

    def pending(self) -> int:
        """Return the number of bytes that can be read without waiting; kazoo then does not wait."""
        left = len(self._received) - self._read_bytes
        if not left and self._tls is not None and self._tls.fileno() >= 0:
            return self._tls.pending()
        return left

    @property
    def has_room(self) -> bool:
        """Whether few enough bytes are unsent for kazoo to add another request."""
        return len(self._unsent) < _UNSENT_BYTES_MAX

    def flush(self) -> bool:
        """Send as much as the kernel takes; return whether nothing is left."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            # The server's last replies may still be readable; reading then reports the end of the connection.
            self._unsent.clear()
        return True

    def cut(self) -> None:
        """Break the connection, from any thread."""
        with suppress(OSError):
            # Not SSLSocket's own method, after which the other thread would continue without encryption.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Doorbell:
    """
    A replacement for the socket pair that wakes kazoo's thread; kazoo sends and receives one byte for each request.

    A waiting thread is woken once for all requests of one turn of the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create it in the thread of the loop."""
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._requests: deque[bytes] = deque()
        self._is_waiting = self._is_scheduled = False
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def send(self, byte: bytes) -> int:
        """
        Announce a request.

        In the loop's thread, kazoo's thread is woken only after the loop has run all ready callbacks.
        """
        self._requests.append(byte)
        if threading.get_ident() != self._loop_thread:
            self._wake()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._wake_scheduled)
        return len(byte)

    def recv(self, _size: int) -> bytes:
        """Take the announcement of one request; empty if there is none."""
        return self._requests.popleft() if self._requests else b""

    def pending(self) -> int:
        """Return the number of announced requests."""
        return len(self._requests)

    def fileno(self) -> int:
        """Return the socket that becomes readable when the waiting thread is woken."""
        return self._receiver.fileno()

    def start_waiting(self) -> bool:
        """Let later requests wake kazoo's thread; return whether there is none yet."""
        self._is_waiting = True
        # A request that was announced before the mark was set is seen here; a later one sees the mark.
        return not self._requests

    def stop_waiting(self) -> None:
        """Let later requests wake nothing, and remove past wake-ups."""
        self._is_waiting = False
        with suppress(BlockingIOError):
            self._receiver.recv(_RECEIVE_BYTES)

    def close(self) -> None:
        """Close the sockets; idempotent."""
        self._receiver.close()
        self._sender.close()

    def _wake_scheduled(self) -> None:
        self._is_scheduled = False
        self._wake()

    def _wake(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            with suppress(OSError):
                self._sender.send(b"\0")


def wait_for_room(sock: SessionSocket, timeout_s: float | None) -> bool:
    """Return whether a socket has room for another request, after waiting for it at most ``timeout_s``."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not sock.has_room and not sock.flush():
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        if not poll.poll(_left_ms(deadline_s)):
            return False
    return True


def wait_for_data(read: list[Any], timeout_s: float | None) -> list[Any]:
    """Send unsent data, and return which of a session's socket and doorbell have data; none after the timeout."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        poll = select.poll()
        for one in read:
            is_sent = not isinstance(one, SessionSocket) or one.flush()
            poll.register(one, select.POLLIN if is_sent else select.POLLIN | select.POLLOUT)
        bells = [one for one in read if isinstance(one, Doorbell)]
        found: dict[int, int] = {}
        if all(bell.start_waiting() for bell in bells):
            left_ms = _left_ms(deadline_s)
            found = dict(poll.poll(left_ms))
        for bell in bells:
            bell.stop_waiting()
        ready = [
            one
            for one in read
            if (one.pending() if isinstance(one, Doorbell) else found.get(one.fileno(), 0) & ~select.POLLOUT)
        ]
        if ready or (not found and deadline_s is not None and time.monotonic() >= deadline_s):
            return ready


def _left_ms(deadline_s: float | None) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1000
