"""Harnesses for the suites of ``txnframework.testing``: one space for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import Key
from txnframework.testing import Crashing, Disconnecting, Harness, Misleading, Paired, VirtualEnvironment
from txnframework_memory._ledger_store import MemoryLedgerStore
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory.space import MemorySpace


class MemoryMetadataHarness(
    Harness[IMetadataStore], Crashing[IMetadataStore], Disconnecting[IMetadataStore], Misleading[IMetadataStore]
):
    """Opens clients of one space."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self.space = MemorySpace(self.environment)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        """Open a client; its session ends with the block."""
        store = await self.space.open_metadata()
        try:
            yield store
        finally:
            await store.close()

    async def crash(self, opened: IMetadataStore) -> None:
        """End the session without closing the client."""
        assert isinstance(opened, MemoryMetadataStore)
        opened.crash()

    async def cut(self, opened: IMetadataStore) -> None:
        """Lose the next reply, then the connection."""
        assert isinstance(opened, MemoryMetadataStore)
        opened.cut()

    async def restore(self, opened: IMetadataStore) -> None:
        """Connect again."""
        assert isinstance(opened, MemoryMetadataStore)
        opened.restore()

    async def mislead(self, opened: IMetadataStore, target: Key | str) -> None:  # noqa: ARG002 - all are woken
        """Wake all watches: a watch here reports only values that were written."""
        self.space.records.watches.wake_all()


class MemoryLedgerHarness(
    Harness[ILedgerStore],
    Paired[ILedgerStore],
    Crashing[ILedgerStore],
    Disconnecting[ILedgerStore],
    Misleading[ILedgerStore],
):
    """Opens clients of the ledgers of one space."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self.space = MemorySpace(self.environment)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ILedgerStore]:
        """Open a client that belongs to the space's own records."""
        async with self.open_as(self.space.identity) as ledgers:
            yield ledgers

    @asynccontextmanager
    async def open_as(self, identity: str) -> AsyncIterator[ILedgerStore]:
        """Open a client that belongs to another metadata store."""
        ledgers = await self.space.open_ledgers(identity)
        try:
            yield ledgers
        finally:
            await ledgers.close()

    async def crash(self, opened: ILedgerStore) -> None:
        """Close the client immediately, as killing its process does."""
        assert isinstance(opened, MemoryLedgerStore)
        opened.crash()

    async def cut(self, opened: ILedgerStore) -> None:
        """Lose the next reply, then the connection."""
        assert isinstance(opened, MemoryLedgerStore)
        opened.cut()

    async def restore(self, opened: ILedgerStore) -> None:
        """Connect again."""
        assert isinstance(opened, MemoryLedgerStore)
        opened.restore()

    async def mislead(self, opened: ILedgerStore, target: Key | str) -> None:  # noqa: ARG002 - all are woken
        """Wake all watches: a watch here reports only entries that were appended."""
        self.space.rows.find(str(target)).watches.wake_all()
