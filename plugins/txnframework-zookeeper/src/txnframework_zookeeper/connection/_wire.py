"""
What is written to and read from: a socket that is read and written in large pieces, and a bell.

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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from struct import Struct
from typing import Any

_PIECE = 1 << 16
_SIZE = Struct("!i")


class Silence(OSError):
    """The server said nothing for too long, though it was asked."""


class Wire:
    """
    A connected socket as kazoo uses it.

    kazoo's thread has it, until it lends it to the event loop; see ``_direct``. What both may do is done under
    ``lock``, and nobody who holds that waits for the server.
    """

    def __init__(self, connected: socket.socket, silence_s: float, lock: AbstractContextManager[Any]) -> None:
        self.silence_s = silence_s
        self.is_lent = self.is_closed = False
        self.failure: BaseException | None = None
        self._lock = lock
        self._socket = connected
        self._received = bytearray()
        self._unsent = bytearray()
        self._asked_at: float | None = None
        self._let_go: Callable[[Callable[[], None]], None] | None = None

    @property
    def can_be_lent(self) -> bool:
        """Whether an event loop can wait for it: of what was encrypted, more may have come than a socket shows."""
        return not isinstance(self._socket, ssl.SSLSocket)

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

    def is_ready(self) -> bool:
        """Whether there is something to be done that the kernel does not show."""
        if self.failure is not None or self.has_message():
            return True
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def has(self, size: int) -> bool:
        """Whether so many bytes were received already."""
        return len(self._received) >= size

    def has_message(self) -> bool:
        """Whether a whole message was received already."""
        received = self._received
        return len(received) >= _SIZE.size and len(received) >= _SIZE.size + _SIZE.unpack_from(received)[0]

    def recv(self, size: int) -> bytes:
        """Return at most so many bytes, empty at the end of the connection."""
        if not self._received:
            self.fill()
        piece = bytes(self._received[:size])
        del self._received[:size]
        return piece

    def fill(self) -> bool:
        """Take what the kernel has, or a part of it; False at the end of the connection."""
        piece = self._socket.recv(_PIECE)
        self._asked_at = None
        self._received += piece
        return bool(piece)

    def send(self, data: bytes) -> int:
        """Take all of it; it is on its way at the latest when kazoo waits for an answer."""
        self._unsent += data
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        return len(data)

    def flush(self) -> None:
        """Hand everything that was sent to the kernel, and wait until it takes it."""
        while True:
            with self._lock:
                awaited = self.push()
            if awaited is None:
                return
            self._wait(awaited)

    def push(self) -> int | None:
        """Hand to the kernel what it takes now; return what to wait for before the rest, None: there is none."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, ssl.SSLWantWriteError):
                return select.POLLOUT
            except ssl.SSLWantReadError:
                return select.POLLIN
            del self._unsent[:sent]
        return None

    def patience_s(self) -> float:
        """
        Return for how long an answer may still be waited for.

        kazoo's own heartbeat does not notice a server that is silent as long as there is something to send.
        """
        asked_at = self._asked_at
        return self.silence_s if asked_at is None else asked_at + self.silence_s - time.monotonic()

    def require_patience(self) -> None:
        """Raise Silence if an answer has been waited for for too long."""
        if self.patience_s() <= 0:
            raise Silence(errno.ETIMEDOUT, f"the server has not answered for {self.silence_s:.1f} s")

    def lend(self, let_go: Callable[[Callable[[], None]], None]) -> None:
        """Let the event loop have it; ``let_go`` lets the loop forget it, and then calls what it was given."""
        self.is_lent, self._let_go = True, let_go

    def give_back(self) -> None:
        """Let kazoo's thread have it again; the loop has forgotten it."""
        self.is_lent, self._let_go = False, None

    def cut(self) -> None:
        """End the connection, from any thread: kazoo finds it broken."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the socket, not before the loop has forgotten it: its number is given to the next one."""
        with self._lock:
            let_go = self._let_go
            self.is_closed = True
            self.give_back()
        if let_go is None:
            self._socket.close()
        else:
            let_go(self._socket.close)

    def _wait(self, what: int) -> None:
        self.require_patience()
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

    def is_ready(self) -> bool:
        """Whether it has been rung and not heard."""
        return self._count > 0

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
