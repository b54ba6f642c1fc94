"""
The way between the event loop and a server that leaves kazoo's thread out, while a connection stands.

kazoo's thread connects, logs in, keeps the session alive, notices silence and takes leave. In between it lends its wire
to the loop, which sends requests and reads answers itself: two threads would wait for each other, and for the
interpreter, at every system call. Numbers are given and requests noted as kazoo does, in the order of the bytes, so
that it can go on with the wire at any moment. It does so when anything goes wrong, and reads for a loop that is held
up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any

from txnframework_zookeeper.connection._returns import Flight, Returns
from txnframework_zookeeper.connection._wire import Wire

_HEAD = Struct("!iii")
_BEHIND_SIZE = 8
_NUMBERS = 2_147_483_647


class Direct:
    """
    What a client of kazoo's lends to the loop, connection after connection; ``lock``: under it a request and the end of
    a connection do not pass each other.
    """

    def __init__(self, client: Any, returns: Returns, lock: Any) -> None:
        self._client = client
        self._connection = client._connection
        self._returns = returns
        self._loop = asyncio.get_running_loop()
        self._lock = lock
        self._wire: Wire | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request can go this way, behind all that were handed over before; asked under the lock."""
        wire = self._wire
        return wire is not None and wire.is_lent and self._client.connected and not self._client._queue

    def begin(self) -> None:
        """Borrow the wire of the connection that stands, if there is one that the loop can wait for; in the loop."""
        with self._lock:
            wire = self._connection.lendable()
            if wire is None or wire.is_lent:
                return
            number = wire.fileno()
            try:
                self._loop.add_reader(number, self._read, wire)
            except NotImplementedError:
                return
            wire.lend(partial(self._let_go, number))
            self._wire = wire
        # What came with the answer to the login is not shown by the socket.
        self._loop.call_soon(self._read, wire)

    def send(self, request: Any, flight: Flight) -> None:
        """Send a request, with others at the next ``flush``; under the lock."""
        assert self._wire is not None
        try:
            data = request.serialize()
        except Exception as error:
            flight.set_exception(error)
            return
        number = self._connection._xid = self._connection._xid % _NUMBERS + 1
        self._client._pending.append((request, flight, number))
        self._wire.send(_HEAD.pack(len(data) + _BEHIND_SIZE, number, request.type) + data)

    def flush(self) -> None:
        """Hand to the kernel what was sent; under the lock. What it does not take now kazoo's thread waits with."""
        assert self._wire is not None
        try:
            if self._wire.push() is not None:
                self._connection.ring()
        except OSError:
            self._wire.cut()
            self.end()

    def end(self) -> None:
        """Give the wire back; in the loop."""
        with self._lock:
            wire, self._wire = self._wire, None
            if wire is not None and wire.is_lent:
                self._loop.remove_reader(wire.fileno())
                wire.give_back()
                self._connection.ring()

    def _read(self, wire: Wire) -> None:
        """Take the answers that came; what goes wrong is told to kazoo's thread, which knows what to do."""
        self._returns.hold()
        try:
            with self._lock:
                if wire is self._wire and wire.is_lent:
                    try:
                        self._connection.take_answers()
                    except Exception as error:
                        wire.failure = error
                        self.end()
        finally:
            self._returns.deliver()

    def _let_go(self, number: int, then: Callable[[], None]) -> None:
        """Forget a wire, from kazoo's thread."""

        def forget() -> None:
            self._loop.remove_reader(number)
            then()

        try:
            self._loop.call_soon_threadsafe(forget)
        except RuntimeError:
            # The loop was closed, and waits for nothing any more.
            then()
