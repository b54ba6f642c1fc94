"""The stores pass the suites of their roles."""

from __future__ import annotations

from txnframework.testing import LedgerStoreSuite, MetadataStoreSuite
from txnframework_sql.testing import SqlLedgerHarness, SqlMetadataHarness


class TestSqlMetadataStore(MetadataStoreSuite):
    """IMetadataStore in a SQLite file."""

    harness = SqlMetadataHarness


class TestSqlLedgerStore(LedgerStoreSuite):
    """ILedgerStore in a SQLite file."""

    harness = SqlLedgerHarness
