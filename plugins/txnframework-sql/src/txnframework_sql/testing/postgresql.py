"""
Harnesses over PostgreSQL: one database for each test, and clients that each connect through their own proxy.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import asyncpg

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import Key
from txnframework.testing import (
    CoCommitting,
    Colocated,
    Crashing,
    Disconnecting,
    Expiring,
    Harness,
    Misleading,
    OwnRows,
    Paired,
    VirtualEnvironment,
    run_ready,
)
from txnframework.testing.servers.proxy import Proxy
from txnframework_sql._ledger_store import SqlLedgerStore, SqlManagedLedger, open_ledger_store
from txnframework_sql._metadata_store import SqlMetadataStore, open_metadata_store
from txnframework_sql._options import LedgerOptions, MetadataOptions
from txnframework_sql.steps.leases import clock_of
from txnframework_sql.testing._postgresql_rows import committed, connected, remove_tables
from txnframework_sql.testing._wire import MARKER, Wires
from txnframework_sql.testing.servers.databases import fresh_database, give_back, take_database
from txnframework_sql.testing.sqlite import SESSION_TTL_MS

_URL_FILE = "postgresql-url"
_PORT = 5432
_ROUNDS_MAX = 20
"""How many rounds ``settle`` waits for requests that replies caused: an endless sequence must not block a test."""
_ANSWER_SECONDS_MAX = 30.0
_RECONNECT_STEP_MS = 100
_RECONNECT_STEPS_MAX = 600


_BY_ENVIRONMENT: WeakKeyDictionary[VirtualEnvironment, list[HarnessDatabase]] = WeakKeyDictionary()


class HarnessClient:
    """One client's connection to the database."""

    def __init__(self, database: HarnessDatabase, target: str | None = None) -> None:
        self._database = database
        self._target = target or database.url
        self._listening = 0
        self.wires = Wires(self.cut_now)
        # A Unix socket: requests of this client are counted immediately, and data sent to it has arrived immediately.
        self._place = tempfile.TemporaryDirectory(prefix="txn-")
        self.proxy = Proxy(database.address, self.wires.tap, path=Path(self._place.name) / f".s.PGSQL.{_PORT}")

    @property
    def url(self) -> str:
        """The URL of the database through this client's proxy."""
        return self._database.url_through(self._place.name, self._target)

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


class HarnessDatabase:
    """
    The database of one test, which the harness finds by the test's directory, and its clients in this process.

    A server replies in real time, while the test's clock is stopped. So nothing here sleeps: the proxies count the
    unanswered requests. A marker is notified last, and therefore arrives last.
    """

    def __init__(self, directory: Path, environment: VirtualEnvironment) -> None:
        self.environment = environment
        self._file = directory / _URL_FILE
        # In the processes of ``Processes``, the starting process has created it.
        if not self._file.exists():
            self._file.touch(mode=0o600)
            self._file.write_text(take_database())
        self.url = self._file.read_text()
        self._clients: list[HarnessClient] = []
        # A notification from one database may cause a request to another one.
        self._databases = _BY_ENVIRONMENT.setdefault(environment, [])
        self._databases.append(self)
        self._notifying: asyncpg.Connection[asyncpg.Record] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The address of the server."""
        split = urlsplit(self.url)
        return split.hostname or "localhost", split.port or 5432

    def url_through(self, place: str, target: str | None = None) -> str:
        """Return the URL of the database, or of ``target`` on its server, through a Unix socket in this directory."""
        split = urlsplit(target or self.url)
        login = split.netloc.rpartition("@")[0]
        return urlunsplit(split._replace(netloc=f"{login}@", query=urlencode({"host": place, "port": _PORT})))

    @asynccontextmanager
    async def client(self, target: str | None = None) -> AsyncIterator[HarnessClient]:
        """Open the connection of another client, to ``target`` on the same server if given, for the block's length."""
        client = HarnessClient(self, target)
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
                for database in self._databases:
                    await database._answered()
                    await database._settle_notifications()
            await run_ready()
            if self._asked() == asked:
                return

    def drop(self) -> None:
        """Drop the database."""
        self._databases.remove(self)
        give_back(self.url)

    def _asked(self) -> int:
        return sum(client.wires.asked for database in self._databases for client in database._clients)

    async def _answered(self) -> None:
        for client in tuple(self._clients):
            await client.wires.answered()

    async def notify(self, channel: str, payloads: Iterable[object]) -> None:
        """Notify, like any login that may connect."""
        for payload in payloads:
            await self._notify(channel, json.dumps(payload))

    async def _notify(self, channel: str, text: str) -> None:
        if self._notifying is None:
            self._notifying = await asyncpg.connect(self.url)
        await self._notifying.execute("SELECT pg_notify($1, $2)", channel, text)

    async def _settle_notifications(self) -> None:
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


_STEPS_OF_A_SESSION = 24
# Idle connections are never checked, however long a test takes in real time: a test might lose the reply to the check.
_OWN: dict[str, Any] = {"share_connection": False, "keepalive_idle_s": 32_767}


class PostgresMetadataHarness(
    Harness[IMetadataStore],
    CoCommitting[IMetadataStore],
    Crashing[IMetadataStore],
    Disconnecting[IMetadataStore],
    Expiring[IMetadataStore],
    Misleading[IMetadataStore],
):
    """Opens metadata stores on one database, each with its own connections, like several processes."""

    session_ms: ClassVar[int] = SESSION_TTL_MS
    kinds: ClassVar[tuple[str, ...]] = ("asyncpg",)

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._database = HarnessDatabase(directory, self.environment)
        self._clients: dict[object, HarnessClient] = {}
        self._has_rows = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        """Open a client; its session ends with the block."""
        options = MetadataOptions(session_ttl_ms=SESSION_TTL_MS, **_OWN)
        async with self._database.client() as client:
            store = await open_metadata_store(
                client.url, self.environment, options, clock=clock_of(self.environment.now_ms)
            )
            self._clients[store] = client
            try:
                yield store
            finally:
                del self._clients[store]
                await store.close()

    async def settle(self) -> None:
        """Wait for answers and notifications."""
        await self._database.settle()

    @asynccontextmanager
    async def connect(self, opened: IMetadataStore, kind: str) -> AsyncIterator[OwnRows]:  # noqa: ARG002 - one kind
        """Open a connection of the application to the database of the store."""
        self._has_rows = True
        async with self._database.client() as client, connected(self._database.url, client) as rows:
            yield rows

    @asynccontextmanager
    async def connect_elsewhere(self, kind: str) -> AsyncIterator[OwnRows]:  # noqa: ARG002 - one kind
        """Open a connection of the application to another database."""
        with fresh_database() as url:
            async with self._database.client(url) as client, connected(url, client) as rows:
                yield rows

    async def committed_rows(self) -> frozenset[str]:
        """Return the keys of the committed rows."""
        return await committed(self._database.url)

    async def crash(self, opened: IMetadataStore) -> None:
        """Cut the client off permanently, and wait until its session has expired for all others."""
        assert isinstance(opened, SqlMetadataStore)
        self._clients[opened].cut_now()
        await opened.abandon()
        for _ in range(_STEPS_OF_A_SESSION):
            await self.environment.advance(2 * SESSION_TTL_MS // _STEPS_OF_A_SESSION)
            await self.settle()

    async def cut(self, opened: IMetadataStore) -> None:
        """Lose the next reply, then the connections; that of an earlier notification comes first."""
        await self.settle()
        self._clients[opened].cut()

    async def restore(self, opened: IMetadataStore) -> None:
        """Reconnect."""
        await self._clients[opened].restore()

    async def mislead(self, opened: IMetadataStore, target: Key | str) -> None:
        """Send false notifications of a record's write, in the current form and in an earlier one with a value."""
        assert isinstance(opened, SqlMetadataStore)
        assert isinstance(target, Key)
        partition = target.partition or None
        change = [target.path, partition, [["by", "00"]], [["by", "01"]]]
        payloads = [[[*change, "false"]], [change]]
        await self._database.notify(opened.database.pool.channel, payloads)  # type: ignore[attr-defined]

    async def destroy(self) -> None:
        """Drop the database."""
        if self._has_rows:
            await remove_tables(self._database.url)
        self._database.drop()


class PostgresLedgerHarness(
    Harness[ILedgerStore],
    Paired[ILedgerStore],
    Crashing[ILedgerStore],
    Disconnecting[ILedgerStore],
    Misleading[ILedgerStore],
    Colocated,
):
    """Opens ledger stores on one database, each with its own connections, like several processes."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._database = HarnessDatabase(directory, self.environment)
        self._clients: dict[object, HarnessClient] = {}

    def open(self) -> AbstractAsyncContextManager[ILedgerStore]:
        """Open a client bound to the records in the same database."""
        return self._open(None)

    def open_as(self, identity: str) -> AbstractAsyncContextManager[ILedgerStore]:
        """Open a client bound to another metadata store."""
        return self._open(identity)

    @asynccontextmanager
    async def _open(self, identity: str | None) -> AsyncIterator[ILedgerStore]:
        async with self._database.client() as client:
            options = LedgerOptions(**_OWN)
            store = await open_ledger_store(client.url, self.environment, options, identity)
            self._clients[store] = client
            try:
                yield store
            finally:
                del self._clients[store]
                await store.close()

    @asynccontextmanager
    async def open_with_records(self) -> AsyncIterator[tuple[ILedgerStore, IMetadataStore]]:
        """Open a client of ledgers and records, each with its own connections."""
        async with self._database.client() as client:
            options = MetadataOptions(**_OWN)
            records = await open_metadata_store(client.url, self.environment, options)
            try:
                ledgers = await open_ledger_store(client.url, self.environment, LedgerOptions(**_OWN), records.identity)
                self._clients[ledgers] = client
                try:
                    yield ledgers, records
                finally:
                    del self._clients[ledgers]
                    await ledgers.close()
            finally:
                await records.close()

    async def settle(self) -> None:
        """Wait for answers and notifications."""
        await self._database.settle()

    async def crash(self, opened: ILedgerStore) -> None:
        """Cut the client off permanently: uncommitted writes are lost."""
        assert isinstance(opened, SqlLedgerStore)
        self._clients[opened].cut_now()
        await opened.close()

    async def cut(self, opened: ILedgerStore) -> None:
        """Lose the next reply, then the connections; that of an earlier notification comes first."""
        await self.settle()
        self._clients[opened].cut()

    async def restore(self, opened: ILedgerStore) -> None:
        """Reconnect."""
        await self._clients[opened].restore()

    async def mislead(self, opened: ILedgerStore, target: Key | str) -> None:
        """Send false notifications of an append, in the current form and in an earlier one with data."""
        assert isinstance(opened, SqlLedgerStore)
        ledger = await opened.open(str(target))
        assert isinstance(ledger, SqlManagedLedger)
        last = (await ledger.tail()).last_confirmed
        payloads = [[[ledger.managed.id, last.ledger_id, last.entry_id + 1, "ZmFsc2U="]], [ledger.managed.id]]
        await self._database.notify(opened.database.pool.channel, payloads)  # type: ignore[attr-defined]

    async def destroy(self) -> None:
        """Drop the database."""
        self._database.drop()
