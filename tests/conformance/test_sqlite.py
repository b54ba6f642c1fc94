"""The metadata family keeps the rules of its roles over SQLite as well: threads, polling watches and all."""

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
from txnframework_sql.testing import SqlLedgerHarness, SqlMetadataHarness
from txnframework_sql.testing._sqlite_rows import AUTOCOMMIT, SQLITE3, committed, connected


class MetadataFamilyInSqlite(WorldHarness):
    """Coordinator, buffer and pending acknowledgments ``metadata`` over SQLite files."""

    stores = SqlMetadataHarness
    ledgers = SqlLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class MetadataFamilyInOneSqlite(MetadataFamilyInSqlite):
    """The same with records and ledgers in one file."""

    one_database = True


class LedgersBesideRows(SqlLedgerHarness, CoCommitting[ILedgerStore]):
    """Ledger stores on one file, in which an application has a table of its own."""

    kinds = (SQLITE3, AUTOCOMMIT)

    @asynccontextmanager
    async def connect(self, opened: ILedgerStore, kind: str) -> AsyncIterator[OwnRows]:
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


class TestStepsWithRowsInSqlite(JointRowRules):
    """Steps in a file, in transactions of an application."""

    harness = LedgersBesideRows


class TestMetadataJointCommitsInSqlite(JointCommitSuite):
    """IJointCoordinator, IPlannableBuffer and IPendingAckStore of the metadata family."""

    harness = MetadataFamilyInOneSqlite


class TestMetadataBufferInSqlite(RulesWithoutSteps):
    """ITransactionBuffer of the metadata family; test_sqlite_processes.py has the rules about steps."""

    harness = MetadataFamilyInSqlite


class TestMetadataCoordinatorInSqlite(CoordinatorSuite):
    """ITransactionCoordinator and IApplicationCoordinator of the metadata family."""

    harness = MetadataFamilyInSqlite


class TestMetadataPendingAcksInSqlite(PendingAckSuite):
    """IPendingAckStore of the metadata family."""

    harness = MetadataFamilyInSqlite
