"""
What kazoo's thread writes to and reads from: a socket that is read and written in large pieces, and a bell.

kazoo asks the kernel about its sockets before every piece of every message. These two answer most of that themselves,
so that many requests cost one system call.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PIECE = 1 << 16
_UNSENT_MAX = 1 << 14


class Silence(OSError):
    """The server said nothing for too long, though it was asked."""


class Wire:
    """A connected socket as kazoo uses it. Only its thread does, but for ``cut``."""

    def __init__(self, connected: socket.socket, silence_s: float) -> None:
        self.silence_s = silence_s
        self._socket = connected
        self._received = memoryview(b"")
        self._unsent = bytearray()
        self._asked_at: float | None = None

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        """Make the socket wait or not."""
        self._socket.setblocking(flag)

    def getpeername(self) -> Any:
        """Return the server's address."""
        return self._socket.getpeername()

    def pending(self) -> int:
        """Return how much can be read without asking the kernel."""
        if self._received:
            return len(self._received)
        return self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0

    def has(self, size: int) -> bool:
        """Whether so many bytes were received already."""
        return len(self._received) >= size

    def recv(self, size: int) -> bytes:
        """Return at most so many bytes, empty at the end of the connection."""
        if not self._received:
            self._received = memoryview(self._socket.recv(_PIECE))
            self._asked_at = None
        piece = self._received[:size]
        self._received = self._received[size:]
        return bytes(piece)

    def send(self, data: bytes) -> int:
        """Take all of it; it is on its way at the latest when kazoo waits for an answer."""
        self._unsent += data
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        if len(self._unsent) >= _UNSENT_MAX:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Hand everything that was sent to the kernel."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            else:
                del self._unsent[:sent]

    def patience_s(self) -> float:
        """
        Return for how long an answer may still be waited for.

        kazoo's own heartbeat does not notice a server that is silent as long as there is something to send.
        """
        if self._asked_at is None:
            return self.silence_s
        left_s = self._asked_at + self.silence_s - time.monotonic()
        if left_s <= 0:
            raise Silence(errno.ETIMEDOUT, f"the server has not answered for {self.silence_s:.1f} s")
        return left_s

    def cut(self) -> None:
        """End the connection, from any thread: kazoo finds it broken."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _wait(self, what: int) -> None:
        poll = select.poll()
        poll.register(self.fileno(), what)
        poll.poll(self.patience_s() * 1000)


class Bell:
    """
    Both ends of the pair of sockets with which kazoo is told, one byte each, how many requests wait.

    A real pair holds some hundred such bytes; then whoever rings waits, and that is the event loop. This one counts.
    """

    def __init__(self) -> None:
        self._ring, self._ear = socket.socketpair()
        self._ring.setblocking(False)
        self._ear.setblocking(False)
        self._lock = threading.Lock()
        self._count = 0
        self._is_held = self._is_rung = self._is_closed = False

    def fileno(self) -> int:
        """Return a descriptor that is readable while the count is not 0."""
        return self._ear.fileno()

    def pending(self) -> int:
        """Return how often it has been rung and not heard."""
        return self._count

    def send(self, data: bytes) -> int:
        """Ring once for each byte."""
        with self._lock:
            if self._is_closed:
                raise OSError(errno.EBADF, "the bell was closed")
            self._count += len(data)
            if not self._is_held:
                self._be_heard()
        return len(data)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be heard at the end, once, of whoever rings meanwhile; in one thread at a time."""
        self._is_held = True
        try:
            yield
        finally:
            with self._lock:
                self._is_held = False
                if self._count and not self._is_closed:
                    self._be_heard()

    def recv(self, size: int) -> bytes:
        """Hear at most so many; a blocking error when there is none."""
        with self._lock:
            heard = min(size, self._count)
            if not heard:
                raise BlockingIOError("nobody has rung")
            self._count -= heard
            if not self._count and self._is_rung:
                self._is_rung = False
                self._ear.recv(1)
        return bytes(heard)

    def close(self) -> None:
        """Close it; kazoo closes each of the two ends."""
        with self._lock:
            self._is_closed = True
            self._ring.close()
            self._ear.close()

    def _be_heard(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            self._ring.send(b"\0")
