"""The metadata family keeps the rules of its roles over a real PostgreSQL as well."""

from __future__ import annotations

from txnframework.testing import CoordinatorSuite, JointCommitSuite, PendingAckSuite, WorldHarness
from txnframework.testing._suites._buffer import RulesWithoutSteps
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)
from txnframework_sql.testing.postgresql import PostgresLedgerHarness, PostgresMetadataHarness


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


class TestMetadataJointCommitsInPostgresql(JointCommitSuite):
    """IJointCoordinator and IJointBuffer of the metadata family."""

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
