"""A server of an ASGI application keeps no connection of a client that is slow, silent or does not read."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from txnframework.cli.addresses import listening_socket
from txnframework.cli.asgi_server import server_config
from txnframework.cli.connections import BoundedListener, Connections

PATIENCE_S = 60
HOST = "127.0.0.1"
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


class Site:
    """A server, and the clock of its connections, which only the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.port = 0
        self.connections = Connections(3, wait_s=10, now=lambda: self.now_s)

    async def enter(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self.port, limit=1_000)
        writer.write(request)
        await writer.drain()
        return reader, writer

    async def pass_time(self, until: Callable[[], bool]) -> None:
        """Let the clients be too slow, again and again, until something has happened."""
        while not until():
            self.now_s += 11
            self.connections.close_overdue()
            await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(application: Callable[..., Awaitable[None]]) -> AsyncIterator[Site]:
    site = Site()
    listener = BoundedListener(listening_socket(HOST, 0, "--listen"), site.connections)
    site.port = listener.getsockname()[1]
    server = uvicorn.Server(server_config(application, site.connections))
    running = asyncio.ensure_future(server.serve([listener]))
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield site
    finally:
        server.should_exit = True
        await running


async def echo(_: Any, receive: Any, send: Any) -> None:
    """Answer with the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": b"%d" % min(size, 9)})


@pytest.mark.parametrize("request_part", [b"", b"GET / HTTP/1.1\r\nHost: ", HEAD + b"x" * 100])
async def test_half_a_request(request_part: bytes) -> None:
    """A client is closed that sends nothing, a part of the headers or a part of the body."""
    async with opened(echo) as site:
        reader, writer = await site.enter(request_part)
        await until(lambda: len(site.connections) == 1)
        await site.pass_time(lambda: not len(site.connections))
        assert await reader.read() == b""
        writer.close()


async def test_an_answer_that_is_not_read() -> None:
    """The application learns that its client is gone, although the client never closed the connection."""
    told = asyncio.Event()

    async def endless(_: Any, receive: Any, send: Any) -> None:
        assert not (await receive())["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            await asyncio.sleep(0)
        told.set()

    async with opened(endless) as site:
        _, writer = await site.enter(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await site.pass_time(told.is_set)
        writer.transport.abort()


async def test_a_long_answer_is_not_the_fault_of_its_client() -> None:
    """While the application works, or waits for an event to tell, the connection stays."""
    begun, going_on = asyncio.Event(), asyncio.Event()

    async def slow(_: Any, receive: Any, send: Any) -> None:
        await receive()
        begun.set()
        leaving = asyncio.ensure_future(receive())
        await going_on.wait()
        leaving.cancel()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with opened(slow) as site:
        reader, writer = await site.enter(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await begun.wait()
        site.now_s += 1_000
        site.connections.close_overdue()
        going_on.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 204")
        writer.close()


async def test_silent_clients_keep_nobody_out() -> None:
    """Many more of them than there may be connections."""
    async with opened(echo) as site:
        silent = [await site.enter(b"GET / HTTP/1.1\r\nX: ") for _ in range(20)]
        reader, writer = await site.enter(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        assert len(site.connections) <= 3
        for _, one in (*silent, (reader, writer)):
            one.close()


def test_clients_do_not_fill_the_log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is logged of bytes that are not HTTP, of huge headers, or of an upgrade that is not possible."""

    async def work() -> None:
        async with opened(echo) as site:
            for request in (
                b"\0\1\2\3\r\n\r\n",
                b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
                b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            ):
                reader, writer = await site.enter(request)
                assert (await reader.readline()).startswith(b"HTTP/1.1 ")
                writer.transport.abort()

    with caplog.at_level(logging.DEBUG, "asyncio"):
        asyncio.run(work())
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    assert capfd.readouterr().err == ""


async def test_connections_are_forgotten() -> None:
    """Of clients that leave in any state."""
    async with opened(echo) as site:
        for request in (b"", b"GET ", HEAD, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            _, writer = await site.enter(request)
            writer.transport.abort()
        with socket.create_connection((HOST, site.port)):
            pass
        await until(lambda: len(site.connections) == 0)
