"""
A proxy in front of a real server that loses, holds and delays data exactly where the test says.

    async with Proxy(server.address) as proxy:
        ...  # connect to proxy.address
        proxy.cut_after(0, Side.SERVER)  # the request arrives, the reply is lost
        ...
        proxy.restore()

The proxy forwards bytes; a ``Tap`` may parse a protocol. The proxy runs in the event loop that entered it, so a command
is in effect when it returns. A blocking client must run in a thread, because it would block the proxy's own loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final, Self

from txnframework.environment import Environment, SystemEnvironment
from txnframework.testing.clock import run_ready

_CHUNK_BYTES = 65536
_LOCALHOST = "127.0.0.1"
# Closing a socket with this option sends a reset: the peer sees a failure instead of a normal end.
_RESET = struct.pack("ii", 1, 0)


class Side(Enum):
    """The sender of a piece of data."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> Side:
        """The side that receives the data of this side."""
        return Side.SERVER if self is Side.CLIENT else Side.CLIENT


class Tap:
    """Sees all bytes of one connection before they are forwarded; override it to parse a protocol."""

    def passes(self, sender: Side, data: bytes) -> bytes:  # noqa: ARG002 - for those who override it
        """
        Return the bytes to forward instead of ``data``; proxy commands given here take effect before they are
        forwarded.
        """
        return data

    def closed(self) -> None:
        """Handle the end of the connection."""


class Proxy:
    """
    Listens on a port of its own and forwards each connection to ``target``; each connection has its own tap.

    ``path``: listen on this Unix socket instead. Data sent over a Unix socket arrives immediately, while TCP may delay
    it on a loaded machine. So use a path in a harness that counts the bytes in flight.
    """

    def __init__(
        self,
        target: tuple[str, int],
        tap: Callable[[], Tap] = Tap,
        environment: Environment | None = None,
        path: Path | None = None,
    ) -> None:
        self._path: Final = path
        self._target: Final = target
        self._tap: Final = tap
        self._environment: Final = environment or SystemEnvironment()
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._runs = asyncio.Event()
        self._runs.set()
        self._is_cut = False
        self._dropped: set[Side] = set()
        self._left: dict[Side, int] = {}
        self._delay_ms = 0

    @property
    def address(self) -> tuple[str, int]:
        """The host and port on which the proxy listens; not available with a ``path``."""
        assert self._server is not None, "a proxy listens inside its block"
        assert self._path is None, f"the proxy listens at {self._path}"
        host, port = self._server.sockets[0].getsockname()
        return host, port

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._links)

    def cut(self) -> None:
        """Reset all connections, and each new one, until ``restore``."""
        self._is_cut = True
        for link in tuple(self._links):
            link.reset()

    def cut_after(self, count: int, sender: Side) -> None:
        """
        Forward ``count`` more bytes of this sender, over all connections; cut when another byte arrives.

        Until then the other side is not limited: after ``cut_after(0, Side.SERVER)`` a request arrives and its reply is
        lost.
        """
        self._left[sender] = count

    def reset_connections(self) -> None:
        """Reset all open connections; new ones are served."""
        for link in tuple(self._links):
            link.reset()

    def half_close(self, sender: Side) -> None:
        """
        Send end-of-file to the receivers of this sender's data on all connections; the other direction stays open.
        """
        for link in tuple(self._links):
            link.half_close(sender)

    def drop(self, sender: Side) -> None:
        """
        Discard all further data of this sender; with the server's dropped, requests arrive and their replies are lost.
        """
        self._dropped.add(sender)

    def stall(self) -> None:
        """Hold all data in both directions until ``restore``; new connections are accepted, and hold theirs too."""
        self._runs.clear()

    def delay(self, by_ms: int) -> None:
        """Deliver all data ``by_ms`` milliseconds later, by the clock of the environment."""
        self._delay_ms = by_ms

    def restore(self) -> None:
        """Cancel all commands; stalled data is delivered, data that was cut off or dropped is lost."""
        self._is_cut = False
        self._dropped.clear()
        self._left.clear()
        self._delay_ms = 0
        self._runs.set()

    async def __aenter__(self) -> Self:
        if self._path is None:
            self._server = await asyncio.start_server(self._connected, _LOCALHOST, 0)
        else:
            self._server = await asyncio.start_unix_server(self._connected, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.cut()
        # Stop accepting first, and reset the connections that were accepted, before the server closes. A server that
        # closes in between leaves a socket open, which shows up as a warning in a later test.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await run_ready()
        self._server.close()
        while self._links:
            await asyncio.gather(*(link.task for link in self._links), return_exceptions=True)
        await self._server.wait_closed()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, self._tap())
        link.take(Side.CLIENT, reader, writer)
        self._links.add(link)
        try:
            if not self._is_cut:
                link.take(Side.SERVER, *await asyncio.open_connection(*self._target))
                await link.run()
        except OSError:
            pass  # one side has failed; the other one is reset below
        except asyncio.CancelledError:
            if not link.was_reset:
                raise
        finally:
            link.reset()
            self._links.discard(link)
            link.tap.closed()

    async def _let_through(self, link: _Link, sender: Side, data: bytes) -> bytes:
        """Return the bytes to forward, once they may be forwarded; all commands are applied here."""
        if self._delay_ms:
            await self._environment.sleep_until(self._environment.now_ms() + self._delay_ms)
        await self._runs.wait()
        data = link.tap.passes(sender, data)
        if sender in self._dropped:
            return b""
        left = self._left.get(sender)
        if left is not None and data:
            self._left[sender] = max(0, left - len(data))
            if len(data) > left:
                await link.send(sender.other, data[:left])
                self.cut()
        return b"" if self._is_cut else data


class _Link:
    """One connection of a client and the connection to the server that belongs to it."""

    def __init__(self, proxy: Proxy, tap: Tap) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: Final = task
        self.tap: Final = tap
        self.was_reset = False
        self._proxy: Final = proxy
        self._readers: dict[Side, asyncio.StreamReader] = {}
        self._writers: dict[Side, asyncio.StreamWriter] = {}

    def take(self, side: Side, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use the streams of one side."""
        self._readers[side], self._writers[side] = reader, writer
        connection: socket.socket = writer.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Sent data has left this process, so a reset that follows cannot overtake it.
        writer.transport.set_write_buffer_limits(0)

    async def run(self) -> None:
        """Forward data until both sides have ended or one has failed."""
        pumps = [asyncio.ensure_future(self._pump(sender)) for sender in Side]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def send(self, receiver: Side, data: bytes) -> None:
        """Send to one side; return when the operating system has accepted the data."""
        writer = self._writers[receiver]
        writer.write(data)
        await writer.drain()

    def half_close(self, sender: Side) -> None:
        """Send end-of-file to the receiver of this sender's data."""
        writer = self._writers.get(sender.other)
        if writer is not None and writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()

    def reset(self) -> None:
        """Reset the connections to both sides, which see a failure."""
        if self.was_reset:
            return
        self.was_reset = True
        for writer in self._writers.values():
            connection: socket.socket = writer.get_extra_info("socket")
            if not writer.is_closing():
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        if self.task is not asyncio.current_task():
            self.task.cancel()

    async def _pump(self, sender: Side) -> None:
        while data := await self._readers[sender].read(_CHUNK_BYTES):
            passed = await self._proxy._let_through(self, sender, data)
            if passed:
                await self.send(sender.other, passed)
        self.half_close(sender)
