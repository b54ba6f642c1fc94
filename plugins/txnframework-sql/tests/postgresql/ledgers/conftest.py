"""A separate database with ledgers, and a lock that is held until other sessions wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from txnframework.environment import SystemEnvironment
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.testing.servers.databases import fresh_database

PATIENCE_S = 120
PATIENT = {"lock_timeout_ms": PATIENCE_S * 1_000, "statement_timeout_ms": PATIENCE_S * 1_000}
"""Options of clients that wait for a lock as long as a test does: on a busy machine the last one comes late."""


@dataclass
class Ledgers:
    """The operations of a test on its database."""

    url: str

    @asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[ILedgerStore]:
        """Open the ledgers like another process, with separate connections."""
        environment = SystemEnvironment()
        # Made with the records, to which they then belong.
        records = await open_metadata_store(self.url, environment, MetadataOptions(**PATIENT))
        await records.close()
        chosen = LedgerOptions(**{"share_connection": False, **PATIENT, **options})
        store = await open_ledger_store(self.url, environment, chosen, None)
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def records(self, *, share_connection: bool = False) -> AsyncIterator[IMetadataStore]:
        """Open the records."""
        chosen = MetadataOptions(share_connection=share_connection, **PATIENT)
        store = await open_metadata_store(self.url, SystemEnvironment(), chosen)
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        """Connect without the stores."""
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def held(self, lock: str = "SELECT FROM managed_ledgers FOR UPDATE") -> AsyncIterator[Hold]:
        """Hold a lock, by default that of every managed ledger, until the end of the block or an earlier release."""
        async with self.session() as holding, self.session() as looking:
            hold = Hold(holding, looking)
            await holding.execute(f"BEGIN; {lock}")
            try:
                yield hold
            finally:
                await hold.let_go()

    @staticmethod
    def run(test: Callable[[], Awaitable[None]]) -> None:
        """Run a test's coroutine function, with a timeout."""

        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test()

        asyncio.run(bounded())


@dataclass
class Hold:
    """A held lock."""

    holding: Any
    looking: Any

    async def waiting(self, sessions: int) -> None:
        """Poll the server until this many sessions wait for the lock."""
        while await self.looking.fetchval(_WAITING) < sessions:
            continue

    async def end_waiting(self) -> None:
        """End the waiting sessions, like an administrator or a server that shuts down."""
        await self.looking.execute(f"SELECT pg_terminate_backend(pid) FROM ({_WHO_WAITS}) waiting")

    async def let_go(self) -> None:
        """Release the lock; may be repeated."""
        if self.holding.is_in_transaction():
            await self.holding.execute("ROLLBACK")


_WHO_WAITS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    " AND state <> 'idle'"
)
_WAITING = f"SELECT count(*) FROM ({_WHO_WAITS}) waiting"


@pytest.fixture
def ledgers() -> Iterator[Ledgers]:
    """Return the ledgers of a fresh database."""
    with fresh_database() as url:
        yield Ledgers(url)
