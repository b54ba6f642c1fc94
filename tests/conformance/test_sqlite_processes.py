"""The stores keep the rules of their roles when each client is a process of its own, all on one file."""

from __future__ import annotations

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.testing import (
    Belonging,
    BufferSuite,
    CoordinatorSuite,
    Disconnecting,
    LedgerStoreSuite,
    MetadataStoreSuite,
    PendingAckSuite,
    Processes,
    WorldHarness,
)
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)
from txnframework_sql.testing import SESSION_TTL_MS, SqlLedgerHarness, SqlMetadataHarness

# What makes a file imports it, and each of these tests makes one.
MIGRATIONS = ("alembic.command", "alembic.runtime.migration", "txnframework_sql.migrations.versions.rev_0001")


class SqlMetadataProcesses(Processes[IMetadataStore], Disconnecting[IMetadataStore]):
    """Each client of the records in a process of its own."""

    client = SqlMetadataHarness
    session_ms = 2 * SESSION_TTL_MS
    preload = MIGRATIONS


class TestSqlMetadataStoreAcrossProcesses(MetadataStoreSuite):
    """IMetadataStore in a SQLite file."""

    harness = SqlMetadataProcesses


class SqlLedgerProcesses(Processes[ILedgerStore], Belonging[ILedgerStore], Disconnecting[ILedgerStore]):
    """Each client of the ledgers in a process of its own."""

    client = SqlLedgerHarness
    preload = MIGRATIONS


class TestSqlLedgerStoreAcrossProcesses(LedgerStoreSuite):
    """ILedgerStore in a SQLite file."""

    harness = SqlLedgerProcesses


class MetadataFamilyAcrossProcesses(WorldHarness):
    """Coordinator, buffer and pending acknowledgments ``metadata`` over stores that are other processes."""

    stores = SqlMetadataProcesses
    ledgers = SqlLedgerProcesses
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class TestMetadataBufferAcrossProcesses(BufferSuite):
    """ITransactionBuffer of the metadata family."""

    harness = MetadataFamilyAcrossProcesses


class TestMetadataCoordinatorAcrossProcesses(CoordinatorSuite):
    """ITransactionCoordinator and IApplicationCoordinator of the metadata family."""

    harness = MetadataFamilyAcrossProcesses


class TestMetadataPendingAcksAcrossProcesses(PendingAckSuite):
    """IPendingAckStore of the metadata family."""

    harness = MetadataFamilyAcrossProcesses
