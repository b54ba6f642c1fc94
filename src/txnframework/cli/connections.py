"""Connections of a server: how many there are, and how long a client may keep the server waiting."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

_LOG = logging.getLogger(__name__)

WAIT_S = 10
"""How long a client may take to complete a request, and to read a part of its answer."""
ACCEPTED_AT_ONCE = 64
"""The backlog of a listening socket: asyncio accepts so many connections before it looks at any of them."""
WARNING_EVERY_S = 60

Peer = tuple[Any, ...]
"""The address of a client, which begins with its host and port: each open connection of a server has another one."""


def within_file_limit(connections_max: int) -> int:
    """Return a number of connections of one server that takes at most half of the files that this process may open."""
    if resource is None:
        return connections_max
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections_max if files_max < 0 else max(1, min(connections_max, files_max // 2))


class Connections:
    """
    The open connections of one server; it bounds their number, and the time for which a client lets the server wait.

    The server waits for a client from the accepted connection to the complete request, and while the client does not
    read an answer. A client that takes longer than ``wait_s`` loses its connection (``close_overdue``). If there are
    ``connections_max``, a new connection replaces the one whose client has kept the server waiting for the longest
    time. So clients that are slow or silent do not keep others out. If the server waits for no client, the new
    connection is closed. A line in the log says so, at most once per minute.

    Several threads may use it. ``now``: the time in seconds, of any origin.
    """

    def __init__(self, connections_max: int, wait_s: float = WAIT_S, now: Callable[[], float] = time.monotonic) -> None:
        self._max = connections_max
        self._wait_s = wait_s
        self._now = now
        self._lock = Lock()
        self._open: dict[Peer, _Connection] = {}
        self._closed = 0
        self._warned_s: float | None = None

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, peer: Peer, accepted: socket.socket) -> bool:
        """Count a new connection, whose client has to send a request; False: the caller closes it."""
        with self._lock:
            if len(self._open) >= self._max and not self._close_slowest("there are {} connections", len(self._open)):
                return False
            self._open[peer[:2]] = _Connection(accepted, [self._now()])
            return True

    def discard(self, peer: Peer, closed: socket.socket) -> None:
        """Forget a connection that is closed."""
        with self._lock:
            known = self._open.get(peer[:2])
            if known is not None and known.socket is closed:
                del self._open[peer[:2]]

    def answer(self, peer: Peer) -> float:
        """Note that a request is complete: the client waits for the server now. Return when the client began."""
        with self._lock:
            known = self._open.get(peer[:2])
            if known is None:
                return self._now()
            began_s = min(known.waits_s, default=self._now())
            known.waits_s.clear()
            return began_s

    def await_request(self, peer: Peer) -> None:
        """Note that the client has its answer: the server waits for its next request."""
        with self._lock:
            if peer[:2] in self._open:
                self._open[peer[:2]].waits_s[:] = [self._now()]

    @contextmanager
    def waiting(self, peer: Peer, since_s: float | None = None) -> Iterator[None]:
        """Wait for the client during the block: it sends the rest of its request, or reads a part of its answer."""
        began_s = self._now() if since_s is None else since_s
        with self._lock:
            known = self._open.get(peer[:2])
            if known is not None:
                known.waits_s.append(began_s)
        try:
            yield
        finally:
            with self._lock:
                if known is not None and began_s in known.waits_s:
                    known.waits_s.remove(began_s)

    def close_overdue(self) -> None:
        """Close the connections whose clients have kept the server waiting for too long."""
        with self._lock:
            latest_s = self._now() - self._wait_s
            for one in self._open.values():
                if not one.is_ending and min(one.waits_s, default=latest_s + 1) <= latest_s:
                    one.end()

    def out_of_files(self) -> None:
        """Close the connection whose client is the slowest, as the process cannot open another file."""
        with self._lock:
            self._close_slowest("this process has opened as many files as it may")

    def _close_slowest(self, reason: str, *facts: object) -> bool:
        self._warn(reason.format(*facts))
        waited_for = [one for one in self._open.values() if one.waits_s and not one.is_ending]
        if not waited_for:
            return False
        min(waited_for, key=lambda one: min(one.waits_s)).end()
        return True

    def _warn(self, reason: str) -> None:
        self._closed += 1
        if self._warned_s is not None and self._now() - self._warned_s < WARNING_EVERY_S:
            return
        _LOG.warning("%s, so the slowest is closed for a new one (%d so far)", reason, self._closed)
        self._warned_s = self._now()


class _Connection:
    """An open connection. ``waits_s``: the times since which the server waits for its client; empty: it does not."""

    def __init__(self, accepted: socket.socket, waits_s: list[float]) -> None:
        self.socket = accepted
        self.waits_s = waits_s
        self.is_ending = False

    def end(self) -> None:
        """Let the owner of the socket find that the connection has ended; it closes the socket."""
        self.is_ending = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class BoundedListener(socket.socket):
    """
    A socket that listens in the place of ``listening``, and accepts only what ``Connections`` admits.

    The server that accepts from it, of whatever library, needs no limit of its own. If the process cannot open another
    file, a connection is accepted and closed with a file that was kept for this. Otherwise asyncio would try again
    without a pause, and log each attempt.
    """

    def __init__(self, listening: socket.socket, connections: Connections) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self._connections = connections
        self._kept: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """
        Return the next connection, and the address of its client.

        :raises BlockingIOError: there is none, or it was closed because there are too many.
        """
        try:
            plain, peer = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._connections.out_of_files()
            self._close_next()
            raise BlockingIOError(errno.EAGAIN, "the next connection was closed") from error
        accepted = _Accepted(plain, peer, self._connections)
        if not self._connections.admit(peer, accepted):
            accepted.close()
            raise BlockingIOError(errno.EAGAIN, "the next connection was closed")
        return accepted, peer

    def close(self) -> None:
        """Listen no more."""
        super().close()
        self._release()

    def _close_next(self) -> None:
        self._release()
        with suppress(OSError):
            super().accept()[0].close()
        with suppress(OSError):
            self._kept = os.open(os.devnull, os.O_RDONLY)

    def _release(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            os.close(kept)


class _Accepted(socket.socket):
    """The socket of a connection; its end is noted."""

    def __init__(self, plain: socket.socket, peer: Peer, connections: Connections) -> None:
        super().__init__(plain.family, plain.type, plain.proto, plain.detach())
        self._peer = peer
        self._connections = connections

    def close(self) -> None:
        self._connections.discard(self._peer, self)
        super().close()
