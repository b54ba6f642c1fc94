"""The metadata family keeps the rules of its roles over a real PostgreSQL as well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from txnframework.interfaces import ILedgerStore
from txnframework.testing import (
    CoCommitting,
    CoordinatorSuite,
    JointCommitSuite,
    OwnRows,
    PendingAckSuite,
    WorldHarness,
)
from txnframework.testing._suites._buffer import RulesWithoutSteps
from txnframework.testing._suites._ledger.joint_rows import JointRowRules
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)
from txnframework_sql.testing._postgresql_rows import committed, connected, remove_tables
from txnframework_sql.testing.postgresql import PostgresLedgerHarness, PostgresMetadataHarness
from txnframework_sql.testing.servers.databases import fresh_database


class MetadataFamilyInPostgresql(WorldHarness):
    """Coordinator, buffer and pending acknowledgments ``metadata`` over PostgreSQL databases."""

    stores = PostgresMetadataHarness
    ledgers = PostgresLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class MetadataFamilyInOnePostgresql(MetadataFamilyInPostgresql):
    """The same with records and ledgers in one database."""

    one_database = True


class LedgersBesideRows(PostgresLedgerHarness, CoCommitting[ILedgerStore]):
    """Ledger stores on one database, in which an application has a table of its own."""

    kinds = ("asyncpg",)

    @asynccontextmanager
    async def connect(self, opened: ILedgerStore, kind: str) -> AsyncIterator[OwnRows]:
        """Open a connection of the application to the database of the store."""
        async with self._database.client() as client, connected(self._database.url, client) as rows:
            yield rows

    @asynccontextmanager
    async def connect_elsewhere(self, kind: str) -> AsyncIterator[OwnRows]:
        """Open a connection of the application to another database."""
        with fresh_database() as url:
            async with self._database.client(url) as client, connected(url, client) as rows:
                yield rows

    async def committed_rows(self) -> frozenset[str]:
        """Return the keys of the committed rows."""
        return await committed(self._database.url)

    async def destroy(self) -> None:
        """Drop the tables and the database."""
        await remove_tables(self._database.url)
        await super().destroy()


class TestStepsWithRowsInPostgresql(JointRowRules):
    """Steps in a database, in transactions of an application."""

    harness = LedgersBesideRows


class TestMetadataJointCommitsInPostgresql(JointCommitSuite):
    """IJointCoordinator and IPlannableBuffer of the metadata family."""

    harness = MetadataFamilyInOnePostgresql


class TestMetadataBufferInPostgresql(RulesWithoutSteps):
    """ITransactionBuffer of the metadata family; test_postgresql_processes.py has the rules about steps."""

    harness = MetadataFamilyInPostgresql


class TestMetadataCoordinatorInPostgresql(CoordinatorSuite):
    """ITransactionCoordinator and IApplicationCoordinator of the metadata family."""

    harness = MetadataFamilyInPostgresql


class TestMetadataPendingAcksInPostgresql(PendingAckSuite):
    """IPendingAckStore of the metadata family."""

    harness = MetadataFamilyInPostgresql
