"""The stores keep the rules of their roles when each client is a separate process on one file.

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
from txnframework_sql.testing import SESSION_TTL_MS, SqlLedgerHarness, SqlMetadataHarness

# What makes a file imports it, and each of these tests makes one.
MIGRATIONS = ("alembic.command", "alembic.config")


class SqlMetadataProcesses(Processes[IMetadataStore], Disconnecting[IMetadataStore]):
    """Each client of the records in a process of its own."""

    client = SqlMetadataHarness
    session_ms = 2 * SESSION_TTL_MS
    preload = MIGRATIONS


class TestSqlMetadataStoreAcrossProcesses(MetadataStoreSuite):
    """IMetadataStore in a SQLite file."""

    harness = SqlMetadataProcesses


class SqlLedgerProcesses(Processes[ILedgerStore], Paired[ILedgerStore], Disconnecting[ILedgerStore]):
    """Each client of the ledgers in a process of its own."""

    client = SqlLedgerHarness
    preload = MIGRATIONS


class TestSqlLedgerStoreAcrossProcesses(LedgerStoreSuite):
    """ILedgerStore in a SQLite file."""

    harness = SqlLedgerProcesses


class MetadataFamilyOverProcesses(WorldHarness):
    """Coordinator and buffer ``metadata``, over stores in processes of their own."""

    stores = SqlMetadataProcesses
    ledgers = SqlLedgerProcesses
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()


class TestMetadataBufferAcrossProcesses(StepRules):
    """What may come between any two steps of a buffer."""

    harness = MetadataFamilyOverProcesses
