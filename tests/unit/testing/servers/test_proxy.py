"""Byte-exact losses, stalls and delays of a proxy."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from txnframework.testing import VirtualEnvironment
from txnframework.testing.servers.proxy import Proxy, Side, Tap

PATIENCE_S = 60


class Counter:
    """A server that answers every byte with its number, as one more byte; it remembers what it was sent."""

    def __init__(self) -> None:
        self.seen = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while byte := await reader.read(1):
                self.seen += byte
                writer.write(bytes([len(self.seen)]))
            writer.write(b"end")
        except OSError:
            pass
        finally:
            writer.close()

    async def saw(self, data: bytes) -> None:
        while self.seen != data:  # noqa: ASYNC110 - everything happens in this loop
            await asyncio.sleep(0)


@asynccontextmanager
async def proxied(**options: Any) -> AsyncIterator[tuple[Counter, Proxy]]:
    counter = Counter()
    server = await asyncio.start_server(counter.serve, "127.0.0.1", 0)
    async with server, Proxy(server.sockets[0].getsockname(), **options) as proxy:
        yield counter, proxy


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*proxy.address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


async def test_hands_on() -> None:
    """Without commands, everything passes, and so does the end of either side."""
    async with proxied() as (counter, proxy), connected(proxy) as (reader, writer):
        writer.write(b"ab")
        writer.write_eof()
        assert await reader.read() == b"\x01\x02end"
        assert counter.seen == b"ab"


async def test_at_a_path(tmp_path: Path) -> None:
    """A proxy at a path lives for its block and cuts like any other; disconnected clients read the end."""
    path = tmp_path / "socket"
    async with proxied(path=path) as (_, proxy):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"\x01"
        proxy.cut()
        assert await reader.read() == b""
        writer.close()
    assert not path.exists()


async def test_cut() -> None:
    """Every connection is reset, and so is a new one, until it is restored; then new ones are served."""
    async with proxied() as (_, proxy):
        async with connected(proxy) as (reader, writer):
            writer.write(b"a")
            assert await reader.readexactly(1) == b"\x01"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        async with connected(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        proxy.restore()
        async with connected(proxy) as (reader, writer):
            writer.write(b"b")
            assert await reader.readexactly(1) == b"\x02"


@pytest.mark.parametrize("turns", range(8))
def test_ends_while_somebody_connects(turns: int) -> None:
    """At any stage, the new connection is reset, and no socket remains open."""

    async def test() -> None:
        async with proxied() as (_, proxy):
            connecting = asyncio.ensure_future(asyncio.open_connection(*proxy.address))
            for _ in range(turns):
                await asyncio.sleep(0)
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset
            await read_and_leave(*await connecting)

    run(test)
    gc.collect()  # what was left open would be a warning here


async def read_and_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readexactly(1)
    finally:
        writer.transport.abort()


async def test_lost_reply() -> None:
    """The request arrives, and nothing of the reply."""
    async with proxied() as (counter, proxy), connected(proxy) as (reader, writer):
        proxy.cut_after(0, Side.SERVER)
        writer.write(b"a")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        assert counter.seen == b"a"


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_cut_in_the_middle(count: int) -> None:
    """Exactly the given number of bytes passes; the connection remains until a further byte."""
    async with proxied() as (counter, proxy), connected(proxy) as (reader, writer):
        proxy.cut_after(count, Side.CLIENT)
        writer.write(b"abcd"[:count])
        assert await reader.readexactly(count) == bytes(range(1, count + 1))
        writer.write(b"abcd"[count:])
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        assert counter.seen == b"abcd"[:count]


async def test_dropped_replies() -> None:
    """Dropped replies never arrive; data sent after the restore does."""
    async with proxied() as (counter, proxy), connected(proxy) as (reader, writer):
        proxy.drop(Side.SERVER)
        writer.write(b"a")
        await counter.saw(b"a")
        for _ in range(20):
            await asyncio.sleep(0)
        proxy.restore()
        writer.write(b"b")
        assert await reader.readexactly(1) == b"\x02"


async def test_stalled() -> None:
    """Stalled data arrives later, in order and completely."""
    async with proxied() as (counter, proxy), connected(proxy) as (reader, writer):
        proxy.stall()
        writer.write(b"ab")
        for _ in range(20):
            await asyncio.sleep(0)
        assert counter.seen == b""
        proxy.restore()
        assert await reader.readexactly(2) == b"\x01\x02"


async def test_delayed() -> None:
    """Data arrives when the environment's clock reaches the delay."""
    environment = VirtualEnvironment()
    async with proxied(environment=environment) as (counter, proxy), connected(proxy) as (_, writer):
        proxy.delay(1_000)
        writer.write(b"a")
        while environment.next_ms() is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await environment.advance(999)
        assert counter.seen == b""
        await environment.advance(1)
        await counter.saw(b"a")


async def test_half_closed() -> None:
    """The receivers read the end of what a sender sends; what they send themselves still arrives."""
    async with proxied() as (_, proxy), connected(proxy) as (reader, writer):
        writer.write(b"a")
        assert await reader.readexactly(1) == b"\x01"
        proxy.half_close(Side.CLIENT)
        assert await reader.read() == b"end"


async def test_tap() -> None:
    """A tap sees and may change all data, and its commands apply before the data passes."""

    class Cuts(Tap):
        def passes(self, sender: Side, data: bytes) -> bytes:
            if data == b"x":
                proxies[0].cut()
            return data.upper() if sender is Side.CLIENT else data

    proxies: list[Proxy] = []

    async with proxied(tap=Cuts) as (counter, proxy), connected(proxy) as (reader, writer):
        proxies.append(proxy)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"\x01"
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        assert counter.seen == b"A"


async def test_server_that_is_gone() -> None:
    """Connecting while the server is down raises an error, and the proxy continues."""
    async with proxied() as (_, proxy):
        proxy._target = ("127.0.0.1", 1)  # type: ignore[misc]
        async with connected(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        assert proxy.connections == 0
