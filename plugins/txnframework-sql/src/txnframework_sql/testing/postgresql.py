"""One PostgreSQL database for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import Key
from txnframework.testing import Crashing, Disconnecting, Expiring, Harness, Misleading, Paired, VirtualEnvironment
from txnframework_sql._ledger import SqlManagedLedger
from txnframework_sql._ledger_store import SqlLedgerStore, open_ledger_store
from txnframework_sql._metadata_store import SqlMetadataStore, open_metadata_store
from txnframework_sql._options import LedgerOptions, MetadataOptions
from txnframework_sql.steps.leases import clock_of
from txnframework_sql.testing._database import Client, Database
from txnframework_sql.testing.sqlite import SESSION_TTL_MS

_STEPS_OF_A_SESSION = 24
# Idle connections are never checked, however long a test takes in real time: a test might lose the reply to the check.
_OWN: dict[str, Any] = {"share_connection": False, "keepalive_idle_s": 32_767}


class PostgresMetadataHarness(
    Harness[IMetadataStore],
    Crashing[IMetadataStore],
    Disconnecting[IMetadataStore],
    Expiring[IMetadataStore],
    Misleading[IMetadataStore],
):
    """Opens metadata stores on one database, each with its own connections, like several processes."""

    session_ms: ClassVar[int] = SESSION_TTL_MS

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._database = Database(directory, self.environment)
        self._clients: dict[object, Client] = {}

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

    async def crash(self, opened: IMetadataStore) -> None:
        """Cut the client off permanently, and wait until its session has expired for all others."""
        assert isinstance(opened, SqlMetadataStore)
        self._clients[opened].cut_now()
        await opened.abandon()
        for _ in range(_STEPS_OF_A_SESSION):
            await self.environment.advance(2 * SESSION_TTL_MS // _STEPS_OF_A_SESSION)
            await self.settle()

    async def cut(self, opened: IMetadataStore) -> None:
        """Lose the next reply, then the connections."""
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
        self._database.drop()


class PostgresLedgerHarness(
    Harness[ILedgerStore],
    Paired[ILedgerStore],
    Crashing[ILedgerStore],
    Disconnecting[ILedgerStore],
    Misleading[ILedgerStore],
):
    """Opens ledger stores on one database, each with its own connections, like several processes."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._database = Database(directory, self.environment)
        self._clients: dict[object, Client] = {}

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

    async def settle(self) -> None:
        """Wait for answers and notifications."""
        await self._database.settle()

    async def crash(self, opened: ILedgerStore) -> None:
        """Cut the client off permanently: uncommitted writes are lost."""
        assert isinstance(opened, SqlLedgerStore)
        self._clients[opened].cut_now()
        await opened.close()

    async def cut(self, opened: ILedgerStore) -> None:
        """Lose the next reply, then the connections."""
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
