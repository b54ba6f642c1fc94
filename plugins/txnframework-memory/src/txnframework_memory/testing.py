"""Harnesses for the suites of ``txnframework.testing``: one space for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import Key
from txnframework.testing import (
    CoCommitting,
    Colocated,
    Crashing,
    Disconnecting,
    Harness,
    Misleading,
    OwnRows,
    Paired,
    VirtualEnvironment,
)
from txnframework_memory._database import MemoryDatabase
from txnframework_memory._ledger_store import MemoryLedgerStore
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory._records import Row
from txnframework_memory.space import MemorySpace


class ConstraintViolated(Exception):
    """A constraint of the tests refused a COMMIT."""


class MemoryRows(OwnRows):
    """A connection to the tables of a space."""

    refusal = ConstraintViolated

    def __init__(self, database: MemoryDatabase) -> None:
        self._rows = database.connect()
        self.connection = self._rows

    async def insert(self, key: str) -> None:
        """Insert a row."""
        await self._rows.put("rows", key, b"")

    async def commit(self) -> None:
        """Commit without the store."""
        await self._rows.commit()

    async def is_open(self) -> bool:
        """Return whether a transaction is open."""
        return self._rows.open is not None

    async def refuse_commit(self) -> None:
        """Write a row that a constraint refuses."""

        def refuse(rows: Mapping[Row, bytes]) -> None:
            if ("rows", "refused") in rows:
                raise ConstraintViolated

        self._rows.database.constraints.append(refuse)
        await self.insert("refused")

    async def lose_commit(self, applied: bool) -> None:
        """Lose the reply to the next COMMIT."""
        self._rows.lose_commit("applied" if applied else "dropped")


class _WithTables:
    """The connections of an application to its tables in a space, for the suites."""

    environment: VirtualEnvironment
    space: MemorySpace

    @asynccontextmanager
    async def connect(self, opened: object, kind: str) -> AsyncIterator[OwnRows]:  # noqa: ARG002 - one kind
        """Open a connection to the tables of the space."""
        yield MemoryRows(self.space.database)

    @asynccontextmanager
    async def connect_elsewhere(self, kind: str) -> AsyncIterator[OwnRows]:  # noqa: ARG002 - one kind
        """Open a connection to the tables of another space."""
        yield MemoryRows(MemorySpace(self.environment).database)

    async def committed_rows(self) -> frozenset[str]:
        """Return the keys of the committed rows."""
        return frozenset(await self.space.database.connect().scan("rows"))


class MemoryMetadataHarness(
    _WithTables,
    Harness[IMetadataStore],
    CoCommitting[IMetadataStore],
    Crashing[IMetadataStore],
    Disconnecting[IMetadataStore],
    Misleading[IMetadataStore],
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
    _WithTables,
    Harness[ILedgerStore],
    CoCommitting[ILedgerStore],
    Paired[ILedgerStore],
    Crashing[ILedgerStore],
    Disconnecting[ILedgerStore],
    Misleading[ILedgerStore],
    Colocated,
):
    """Opens clients of the ledgers of one space."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self.space = MemorySpace(self.environment)
        # The records that were opened with ledgers, whose steps append to them.
        self._records: dict[ILedgerStore, MemoryMetadataStore] = {}

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

    @asynccontextmanager
    async def open_with_records(self) -> AsyncIterator[tuple[ILedgerStore, IMetadataStore]]:
        """Open a client of the ledgers, and one of the records of the same space."""
        records = await self.space.open_metadata()
        try:
            async with self.open() as ledgers:
                self._records[ledgers] = records
                yield ledgers, records
        finally:
            await records.close()

    async def crash(self, opened: ILedgerStore) -> None:
        """Close the client immediately, as killing its process does."""
        assert isinstance(opened, MemoryLedgerStore)
        opened.crash()

    async def cut(self, opened: ILedgerStore) -> None:
        """Lose the next reply, then the connection."""
        assert isinstance(opened, MemoryLedgerStore)
        opened.cut()
        if opened in self._records:
            self._records[opened].cut()

    async def restore(self, opened: ILedgerStore) -> None:
        """Connect again."""
        assert isinstance(opened, MemoryLedgerStore)
        opened.restore()
        if opened in self._records:
            self._records[opened].restore()

    async def mislead(self, opened: ILedgerStore, target: Key | str) -> None:  # noqa: ARG002 - all are woken
        """Wake all watches: a watch here reports only entries that were appended."""
        self.space.rows.find(str(target)).watches.wake_all()
