"""The metadata family keeps the rules of its roles over SQLite as well: threads, polling watches and all."""

from __future__ import annotations

from txnframework.testing import CoordinatorSuite, JointCommitSuite, PendingAckSuite, WorldHarness
from txnframework.testing._suites._buffer import RulesWithoutSteps
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)
from txnframework_sql.testing import SqlLedgerHarness, SqlMetadataHarness


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


class TestMetadataJointCommitsInSqlite(JointCommitSuite):
    """IJointCoordinator, IJointBuffer and IJointPendingAcks of the metadata family."""

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
