"""A connection pooler like PgBouncer, without its limits: sessions are kept, or each transaction gets another one."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_ASKS_FOR_TLS = 80877103
_PROTOCOL = 196608
_KNOWN = {"user", "database", "application_name", "client_encoding"}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


async def received(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the next message, as its kind and its body."""
    kind = await reader.readexactly(1)
    (length,) = struct.unpack("!I", await reader.readexactly(4))
    return kind, await reader.readexactly(length - 4)


class Pooler:
    """
    Gives its clients sessions of a server whose login uses a password in clear.

    ``mode`` is ``session`` or ``transaction``. Sessions that are unused are taken latest first, or ``in_turn``.
    """

    def __init__(self, url: str, mode: str, *, in_turn: bool = False, sessions_max: int = 100) -> None:
        self._url = urlsplit(url)
        self._mode = mode
        self._in_turn = in_turn
        # The sessions that are opened for the first client, before it asks for one.
        self._warm = 2 if in_turn else 1
        self._welcome = b""
        self._free = asyncio.Semaphore(sessions_max)
        self._unused: deque[Streams] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve for the length of a block; yield the URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            login = self._url.netloc.rpartition("@")[0]
            yield self._url._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._opened:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._opened.append(writer)
        try:
            if await self._greet(reader, writer):
                await self._forward(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # a side has closed its connection
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a client's first messages; return whether it is served."""
        while True:
            (length,) = struct.unpack("!I", await reader.readexactly(4))
            body = await reader.readexactly(length - 4)
            (code,) = struct.unpack("!I", body[:4])
            if code != _ASKS_FOR_TLS:
                break
            writer.write(b"N")
        words = body[4:].split(b"\0")
        for name in words[:-2:2]:
            if name.decode() not in _KNOWN:
                text = b"unsupported startup parameter: " + name
                writer.write(message(b"E", b"SFATAL\0VFATAL\0C08P01\0M" + text + b"\0\0"))
                return False
        while len(self._unused) < self._warm:
            session, self._welcome = await self._connect()
            self._unused.append(session)
        self._warm = 0
        writer.write(self._welcome + message(b"K", struct.pack("!II", 1, 1)) + message(b"Z", b"I"))
        return True

    async def _connect(self) -> tuple[Streams, bytes]:
        """Open a session of the server; return it with what it said about itself."""
        session = await asyncio.open_connection(self._url.hostname, self._url.port)
        reader, writer = session
        self._opened.append(writer)
        words = ["user", self._url.username or "", "database", self._url.path[1:], "client_encoding", "UTF8", "", ""]
        body = struct.pack("!I", _PROTOCOL) + "\0".join(words)[:-1].encode() + b"\0"
        writer.write(struct.pack("!I", len(body) + 4) + body)
        welcome = b""
        while True:
            kind, body = await received(reader)
            if kind == b"R" and body[3]:
                writer.write(message(b"p", (self._url.password or "").encode() + b"\0"))
            elif kind in b"RS":
                welcome += message(kind, body)
            elif kind == b"Z":
                return session, welcome

    async def _take(self) -> Streams:
        await self._free.acquire()
        if not self._unused:
            return (await self._connect())[0]
        return self._unused.popleft() if self._in_turn else self._unused.pop()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the messages of a client, and the replies of a session that it has for a transaction or longer."""
        while True:
            first = await received(reader)
            if first[0] == b"X":
                return
            session = await self._take()
            try:
                await self._forward_to(session, first, reader, writer)
            finally:
                self._free.release()
            self._unused.append(session)

    async def _forward_to(
        self, session: Streams, first: tuple[bytes, bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Return when the session is not needed any more."""
        kind, body = first
        asking = asyncio.ensure_future(asyncio.sleep(0, first))
        answering = asyncio.ensure_future(received(session[0]))
        unanswered = 0
        try:
            while True:
                await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    kind, body = asking.result()
                    unanswered += kind in b"QS"
                    session[1].write(message(kind, body))
                    asking = asyncio.ensure_future(received(reader))
                if answering.done():
                    kind, body = answering.result()
                    writer.write(message(kind, body))
                    unanswered -= kind == b"Z"
                    is_over = kind == b"Z" and body == b"I" and not unanswered
                    # A client that waits for its reply has sent nothing more.
                    if is_over and self._mode == "transaction" and not asking.done():
                        return
                    answering = asyncio.ensure_future(received(session[0]))
        finally:
            asking.cancel()
            answering.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)
