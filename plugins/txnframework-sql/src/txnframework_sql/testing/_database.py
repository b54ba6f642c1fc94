"""One PostgreSQL database for each test, and its clients, each of which connects through its own proxy."""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import asyncpg

from txnframework.testing import VirtualEnvironment, run_ready
from txnframework.testing.servers.proxy import Proxy
from txnframework_sql.testing._wire import MARKER, Wires
from txnframework_sql.testing.databases import give_back, take_database

_URL_FILE = "postgresql-url"
_PORT = 5432
_ROUNDS_MAX = 20
"""How many rounds ``settle`` waits for requests that replies caused: an endless sequence must not block a test."""
_ANSWER_SECONDS_MAX = 30.0
_RECONNECT_STEP_MS = 100
_RECONNECT_STEPS_MAX = 600


_TOGETHER: WeakKeyDictionary[VirtualEnvironment, list[Database]] = WeakKeyDictionary()


class Client:
    """One client's connection to the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listening = 0
        self.wires = Wires(self.cut_now)
        # A Unix socket: requests of this client are counted at once, and data sent to it has arrived at once.
        self._place = tempfile.TemporaryDirectory(prefix="txn-")
        self.proxy = Proxy(database.address, self.wires.tap, path=Path(self._place.name) / f".s.PGSQL.{_PORT}")

    @property
    def url(self) -> str:
        """The URL of the database through this client's proxy."""
        return self._database.url_through(self._place.name)

    def leave(self) -> None:
        """Remove the directory of the socket."""
        self._place.cleanup()

    def cut(self) -> None:
        """Lose the next reply, then the connection."""
        self._listening = len(self.wires.listening)
        self.wires.lose_reply()

    def cut_now(self) -> None:
        """Close every connection, and refuse new ones."""
        self.proxy.cut()

    async def restore(self) -> None:
        """Allow connections again; return when the client listens as before, which may take time."""
        self.wires.is_losing_reply = False
        # Without a request nothing was lost, but the client was cut off.
        self.proxy.reset_connections()
        self.proxy.restore()
        for _ in range(_RECONNECT_STEPS_MAX):
            await self._database.settle()
            if len(self.wires.listening) >= self._listening:
                return
            await self._database.environment.advance(_RECONNECT_STEP_MS)
        raise AssertionError("the client does not listen again although it could connect")


class Database:
    """
    The database of one test, which the harness finds by the test's directory, and its clients in this process.

    A server answers in real time, while the test's clock stands still. So nothing here sleeps: the proxies count the
    unanswered requests. A marker is notified last, and therefore arrives last.
    """

    def __init__(self, directory: Path, environment: VirtualEnvironment) -> None:
        self.environment = environment
        self._file = directory / _URL_FILE
        # In the processes of ``Processes``, the starting process has created it.
        if not self._file.exists():
            self._file.touch(mode=0o600)
            self._file.write_text(take_database())
        self._url = self._file.read_text()
        self._clients: list[Client] = []
        # A notification from one database may cause a request to another one.
        self._together = _TOGETHER.setdefault(environment, [])
        self._together.append(self)
        self._notifying: asyncpg.Connection[asyncpg.Record] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The address of the server."""
        split = urlsplit(self._url)
        return split.hostname or "localhost", split.port or 5432

    def url_through(self, place: str) -> str:
        """Return the database's URL through a Unix socket in this directory."""
        split = urlsplit(self._url)
        login = split.netloc.rpartition("@")[0]
        return urlunsplit(split._replace(netloc=f"{login}@", query=urlencode({"host": place, "port": _PORT})))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Open the connection of another client, for the length of the block."""
        client = Client(self)
        async with client.proxy:
            self._clients.append(client)
            try:
                yield client
            finally:
                self._clients.remove(client)
                client.leave()
                if self._notifying is not None and not self._clients:
                    await self._notifying.close()
                    self._notifying = None

    async def settle(self) -> None:
        """
        Wait until every request is answered, every notification is received, and their effects are complete.

        This covers the databases of all harnesses with the same environment.
        """
        for _ in range(_ROUNDS_MAX):
            await run_ready()
            asked = self._asked()
            async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                for database in self._together:
                    await database._answered()
                    await database._hear()
            await run_ready()
            if self._asked() == asked:
                return

    def drop(self) -> None:
        """Drop the database."""
        self._together.remove(self)
        give_back(self._url)

    def _asked(self) -> int:
        return sum(client.wires.asked for database in self._together for client in database._clients)

    async def _answered(self) -> None:
        for client in tuple(self._clients):
            await client.wires.answered()

    async def notify(self, channel: str, payloads: Iterable[object]) -> None:
        """Notify, like any login that may connect."""
        for payload in payloads:
            await self._notify(channel, json.dumps(payload))

    async def _notify(self, channel: str, text: str) -> None:
        if self._notifying is None:
            self._notifying = await asyncpg.connect(self._url)
        await self._notifying.execute("SELECT pg_notify($1, $2)", channel, text)

    async def _hear(self) -> None:
        """Notify every channel of a marker: notifications arrive in the order in which they were committed."""
        listening = {client: client.wires.listening for client in self._clients}
        channels = {channel for wires in listening.values() for wire in wires for channel in wire.channels}
        if not channels:
            return
        marker = MARKER + secrets.token_hex(8).encode()
        for channel in channels:
            await self._notify(channel, marker.decode())
        for client, wires in listening.items():
            await client.wires.heard(marker, wires)
