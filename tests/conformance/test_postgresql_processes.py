"""The stores keep the rules of their roles when each client is a separate process on one database.

So do the races, kills and lost replies of a buffer over them, which are scheduled by steps. Rules that are scheduled by
turns of one event loop are left out.
"""

from __future__ import annotations

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.testing import (
    Disconnecting,
    LedgerStoreSuite,
    MetadataStoreSuite,
    Paired,
    Processes,
    WorldHarness,
)
from txnframework.testing._suites._buffer.steps import StepRules
from txnframework_metadata.plugin import txnframework_buffers, txnframework_coordinators
from txnframework_sql.testing import SESSION_TTL_MS
from txnframework_sql.testing.postgresql import PostgresLedgerHarness, PostgresMetadataHarness

# Each client imports these: what connects to PostgreSQL, and, in a database without tables, what creates them.
IMPORTED = ("txnframework_sql.postgresql._database", "alembic.command", "alembic.config")


class PostgresMetadataProcesses(Processes[IMetadataStore], Disconnecting[IMetadataStore]):
    """Each client of the records in a process of its own."""

    client = PostgresMetadataHarness
    session_ms = 2 * SESSION_TTL_MS
    preload = IMPORTED


class TestPostgresMetadataStoreAcrossProcesses(MetadataStoreSuite):
    """IMetadataStore in a PostgreSQL database."""

    harness = PostgresMetadataProcesses


class PostgresLedgerProcesses(Processes[ILedgerStore], Paired[ILedgerStore], Disconnecting[ILedgerStore]):
    """Each client of the ledgers in a process of its own."""

    client = PostgresLedgerHarness
    preload = IMPORTED


class TestPostgresLedgerStoreAcrossProcesses(LedgerStoreSuite):
    """ILedgerStore in a PostgreSQL database."""

    harness = PostgresLedgerProcesses


class MetadataFamilyOverPostgresProcesses(WorldHarness):
    """Coordinator and buffer ``metadata``, over stores in processes of their own."""

    stores = PostgresMetadataProcesses
    ledgers = PostgresLedgerProcesses
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()


class TestMetadataBufferAcrossPostgresProcesses(StepRules):
    """What may come between any two steps of a buffer."""

    harness = MetadataFamilyOverPostgresProcesses
