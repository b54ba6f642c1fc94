"""
A proxy before a real server, which loses, holds up and delays what passes, exactly where the test says.

    async with Proxy(server.address) as proxy:
        ...  # connect to proxy.address
        proxy.cut_after(0, Side.SERVER)  # what was sent arrives; of the reply nothing comes back
        ...
        proxy.restore()

It knows no protocol, only bytes; a ``Tap`` may know one. It runs in the event loop that entered it, so that a command
is in force when it returns. Whoever blocks that loop waits for himself: blocking clients belong into a thread.
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
# Closing a socket with this option sends a reset: the other side learns of a failure, not of an end.
_RESET = struct.pack("ii", 1, 0)


class Side(Enum):
    """Who sent what passes."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> Side:
        """Who receives it."""
        return Side.SERVER if self is Side.CLIENT else Side.CLIENT


class Tap:
    """What sees every byte of one connection before it goes on; one that knows the protocol overrides it."""

    def passes(self, sender: Side, data: bytes) -> bytes:  # noqa: ARG002 - for those who override it
        """Return what goes on instead of ``data``; a command given here is in force before it does."""
        return data

    def closed(self) -> None:
        """See that the connection is gone."""


class Proxy:
    """
    Listens on a port of its own, and hands every connection on to ``target``; each has a tap of its own.

    ``path``: listens on this Unix socket instead. What is sent over one is there at once, while over TCP a loaded
    machine may take its time: where a harness counts what is under way, it is the one to take.
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
        """Where clients connect; a proxy at a ``path`` has no other address."""
        assert self._server is not None, "a proxy listens inside its block"
        assert self._path is None, f"the proxy listens at {self._path}"
        host, port = self._server.sockets[0].getsockname()
        return host, port

    @property
    def connections(self) -> int:
        """How many connections there are now."""
        return len(self._links)

    def cut(self) -> None:
        """Reset every connection, and each one that is tried from now on."""
        self._is_cut = True
        for link in tuple(self._links):
            link.reset()

    def cut_after(self, count: int, sender: Side) -> None:
        """
        Let this many bytes more of this sender pass, over all connections, and cut when there comes another one.

        What the other side sends passes until then: after ``cut_after(0, Side.SERVER)`` a request arrives, and its
        reply does not.
        """
        self._left[sender] = count

    def reset_connections(self) -> None:
        """Reset every connection that there is; new ones are served."""
        for link in tuple(self._links):
            link.reset()

    def half_close(self, sender: Side) -> None:
        """Tell the receivers of every connection that this sender sends nothing more; the other way stays open."""
        for link in tuple(self._links):
            link.half_close(sender)

    def drop(self, sender: Side) -> None:
        """Swallow what this sender sends from now on; with the server's, requests arrive and nobody hears of it."""
        self._dropped.add(sender)

    def stall(self) -> None:
        """Keep everything that comes, in both directions, until ``restore``; connections are taken and stand still."""
        self._runs.clear()

    def delay(self, by_ms: int) -> None:
        """Let everything arrive this much later, by the clock of the environment."""
        self._delay_ms = by_ms

    def restore(self) -> None:
        """Take back every command; what was stalled arrives, what was cut or dropped is lost."""
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
        # Nobody is accepted from now on, and who was is served, that is reset, before the server closes: a server that
        # closes between the two leaves the socket open, to be found in the middle of something else.
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
            pass  # either side is gone, and the other one is told
        except asyncio.CancelledError:
            if not link.was_reset:
                raise
        finally:
            link.reset()
            self._links.discard(link)
            link.tap.closed()

    async def _let_through(self, link: _Link, sender: Side, data: bytes) -> bytes:
        """Return what goes on of what came, when it may; everything that the commands say is decided here."""
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
    """One connection: a client's, and the one to the server that was made for it."""

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
        """Take what leads to one of the sides."""
        self._readers[side], self._writers[side] = reader, writer
        connection: socket.socket = writer.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What was sent has left this process: a reset that follows does not overtake it.
        writer.transport.set_write_buffer_limits(0)

    async def run(self) -> None:
        """Hand on until both sides have ended, or one has failed."""
        pumps = [asyncio.ensure_future(self._pump(sender)) for sender in Side]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def send(self, receiver: Side, data: bytes) -> None:
        """Send to one of the sides, and return when the operating system has it."""
        writer = self._writers[receiver]
        writer.write(data)
        await writer.drain()

    def half_close(self, sender: Side) -> None:
        """Tell who receives from this sender that it has ended."""
        writer = self._writers.get(sender.other)
        if writer is not None and writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()

    def reset(self) -> None:
        """End it for both sides, as a failure."""
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
