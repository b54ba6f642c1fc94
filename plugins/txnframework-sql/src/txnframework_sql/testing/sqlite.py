"""One SQLite file for each test."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import ClassVar

from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.testing import (
    CoCommitting,
    Colocated,
    Crashing,
    Disconnecting,
    Expiring,
    Harness,
    OwnRows,
    Paired,
    VirtualEnvironment,
    run_ready,
)
from txnframework_sql._ledger_store import SqlLedgerStore, open_ledger_store
from txnframework_sql._metadata_store import SqlMetadataStore, open_metadata_store
from txnframework_sql._options import LedgerOptions, MetadataOptions
from txnframework_sql.sqlite._connection import Pause, SqliteConnection
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.steps.statements import Executor, Steps
from txnframework_sql.testing._sqlite_rows import AUTOCOMMIT, SQLITE3, committed, connected

SESSION_TTL_MS = 6_000
POLL_MS = 20
_LOOKS = 2
_ROUNDS_MAX = 100


class CuttableConnection(SqliteConnection):
    """A connection that can be cut: the next commit takes effect without a reply, and every other call fails."""

    is_cut: ClassVar[bool] = False
    has_lost_reply: ClassVar[bool] = False

    @classmethod
    def cut(cls, is_cut: bool) -> None:
        """Cut or restore every connection of this class; each client of a harness has its own class."""
        cls.is_cut, cls.has_lost_reply = is_cut, False

    def begin_read(self) -> None:
        """Begin, unless the connection is cut."""
        if self.is_cut:
            raise sqlite3.OperationalError("cut off")
        super().begin_read()

    def begin_write(self, pause: Pause = time.sleep) -> None:
        """Begin, unless the connection is cut and has lost its reply."""
        if self.is_cut and self.has_lost_reply:
            raise sqlite3.OperationalError("cut off")
        super().begin_write(pause)

    def commit(self) -> None:
        """Commit; if the connection is cut, lose the reply."""
        super().commit()
        if self.is_cut:
            type(self).has_lost_reply = True
            raise sqlite3.OperationalError("the reply was lost")


class _File:
    """The file of one test and its clients."""

    def __init__(self, directory: Path, environment: VirtualEnvironment) -> None:
        self.path = directory / "txn.db"
        self.url = f"sqlite:///{self.path}"
        self._environment = environment
        self._clients: dict[Executor, type[CuttableConnection]] = {}

    def kind(self) -> type[CuttableConnection]:
        """Return the connection class of another client."""
        return type("OneClient", (CuttableConnection,), {})

    def opened(self, executor: Executor, kind: type[CuttableConnection]) -> None:
        """Add a client."""
        self._clients[executor] = kind

    def closing(self, executor: Executor) -> None:
        """Remove a client."""
        self._clients.pop(executor, None)

    def cut(self, executor: Executor, is_cut: bool) -> None:
        """Cut or restore a client."""
        self._clients[executor].cut(is_cut)

    async def settle(self) -> None:
        """Wait until every thread has executed its jobs, and every waiting watch has polled the database once."""
        for step_ms in (0, POLL_MS):
            await self._environment.advance(step_ms)
            for _ in range(_ROUNDS_MAX):
                asked = self._asked()
                looks = 0
                for executor in tuple(self._clients):
                    looks += await _wait_for_jobs(executor)
                await run_ready()
                # Replies received meanwhile may have caused new requests.
                if self._asked() <= asked + looks:
                    break

    def _asked(self) -> int:
        return sum(executor.jobs_received for executor in self._clients if isinstance(executor, SqliteDatabase))


async def _wait_for_jobs(executor: Executor) -> int:
    """Wait until a thread has executed its jobs; return how many jobs this has added."""
    looks = 0
    # The second read begins after the writes queued beside the first one, unless these wait for a lock.
    while looks < _LOOKS or (isinstance(executor, SqliteDatabase) and not executor.is_idle):
        looks += 1
        with suppress(TxnFrameworkError):
            await executor.read(_nothing)
    return looks


def _nothing() -> Steps[None]:
    yield from ()


class SqlMetadataHarness(
    Harness[IMetadataStore],
    CoCommitting[IMetadataStore],
    Crashing[IMetadataStore],
    Disconnecting[IMetadataStore],
    Expiring[IMetadataStore],
):
    """Opens metadata stores on one file, each with its own connection, like several processes."""

    session_ms: ClassVar[int] = SESSION_TTL_MS
    kinds: ClassVar[tuple[str, ...]] = (SQLITE3, AUTOCOMMIT)

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._file = _File(directory, self.environment)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        """Open a client; its session ends with the block."""
        options = MetadataOptions(session_ttl_ms=SESSION_TTL_MS, poll_ms=POLL_MS, share_connection=False)
        kind = self._file.kind()
        store = await open_metadata_store(self._file.url, self.environment, options, kind)
        self._file.opened(store.database, kind)
        try:
            yield store
        finally:
            self._file.closing(store.database)
            await store.close()

    async def settle(self) -> None:
        """Wait for the threads, and for the polling watches."""
        await self._file.settle()

    @asynccontextmanager
    async def connect(self, opened: IMetadataStore, kind: str) -> AsyncIterator[OwnRows]:  # noqa: ARG002 - one file
        """Open a connection of the application to the file of the store."""
        with connected(self._file.path, kind) as rows:
            yield rows

    @asynccontextmanager
    async def connect_elsewhere(self, kind: str) -> AsyncIterator[OwnRows]:
        """Open a connection of the application to another file."""
        with connected(self.directory / "elsewhere.db", kind) as rows:
            yield rows

    async def committed_rows(self) -> frozenset[str]:
        """Return the keys of the committed rows."""
        return committed(self._file.path)

    async def crash(self, opened: IMetadataStore) -> None:
        """Stop the heartbeat, and wait until the session has expired for all others."""
        assert isinstance(opened, SqlMetadataStore)
        self._file.closing(opened.database)
        await opened.abandon()
        for _ in range(2 * SESSION_TTL_MS // 500):
            await self.environment.advance(500)
            await self.settle()

    async def cut(self, opened: IMetadataStore) -> None:
        """Lose the next reply, then the connection."""
        assert isinstance(opened, SqlMetadataStore)
        self._file.cut(opened.database, True)

    async def restore(self, opened: IMetadataStore) -> None:
        """Reconnect."""
        assert isinstance(opened, SqlMetadataStore)
        self._file.cut(opened.database, False)


class SqlLedgerHarness(
    Harness[ILedgerStore],
    Paired[ILedgerStore],
    Crashing[ILedgerStore],
    Disconnecting[ILedgerStore],
    Colocated,
):
    """Opens ledger stores on one file, each with its own connection, like several processes."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._file = _File(directory, self.environment)

    def open(self) -> AbstractAsyncContextManager[ILedgerStore]:
        """Open a client bound to the records in the same file."""
        return self._open(None)

    def open_as(self, identity: str) -> AbstractAsyncContextManager[ILedgerStore]:
        """Open a client bound to another metadata store."""
        return self._open(identity)

    @asynccontextmanager
    async def _open(self, identity: str | None) -> AsyncIterator[ILedgerStore]:
        options = LedgerOptions(poll_ms=POLL_MS, share_connection=False)
        kind = self._file.kind()
        store = await open_ledger_store(self._file.url, self.environment, options, identity, kind)
        self._file.opened(store.database, kind)
        try:
            yield store
        finally:
            self._file.closing(store.database)
            await store.close()

    @asynccontextmanager
    async def open_with_records(self) -> AsyncIterator[tuple[ILedgerStore, IMetadataStore]]:
        """Open ledgers and records of the file that share a connection."""
        url, environment, kind = self._file.url, self.environment, self._file.kind()
        records = await open_metadata_store(url, environment, MetadataOptions(poll_ms=POLL_MS), kind)
        try:
            ledgers = await open_ledger_store(url, environment, LedgerOptions(poll_ms=POLL_MS), records.identity, kind)
            self._file.opened(ledgers.database, kind)
            try:
                yield ledgers, records
            finally:
                self._file.closing(ledgers.database)
                await ledgers.close()
        finally:
            await records.close()

    async def settle(self) -> None:
        """Wait for the threads, and for the polling watches."""
        await self._file.settle()

    async def crash(self, opened: ILedgerStore) -> None:
        """Close the client: uncommitted writes are lost."""
        assert isinstance(opened, SqlLedgerStore)
        self._file.closing(opened.database)
        await opened.close()

    async def cut(self, opened: ILedgerStore) -> None:
        """Lose the next reply, then the connection."""
        assert isinstance(opened, SqlLedgerStore)
        self._file.cut(opened.database, True)

    async def restore(self, opened: ILedgerStore) -> None:
        """Reconnect."""
        assert isinstance(opened, SqlLedgerStore)
        self._file.cut(opened.database, False)
