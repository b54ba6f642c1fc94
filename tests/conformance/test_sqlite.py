"""The metadata family keeps the rules of its buffer over SQLite as well: threads, polling watches and all."""

from __future__ import annotations

from txnframework.testing import BufferSuite, WorldHarness
from txnframework_metadata.plugin import txnframework_buffers, txnframework_coordinators
from txnframework_sql.testing import SqlLedgerHarness, SqlMetadataHarness


class MetadataFamilyInSqlite(WorldHarness):
    """Coordinator and buffer ``metadata`` over SQLite files."""

    stores = SqlMetadataHarness
    ledgers = SqlLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()


class TestMetadataBufferInSqlite(BufferSuite):
    """ITransactionBuffer of the metadata family."""

    harness = MetadataFamilyInSqlite
