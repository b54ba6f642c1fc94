"""The stores pass the suites of their roles."""

from __future__ import annotations

from txnframework.testing import LedgerStoreSuite, MetadataStoreSuite
from txnframework_sql.testing.postgresql import PostgresLedgerHarness, PostgresMetadataHarness


class TestPostgresMetadataStore(MetadataStoreSuite):
    """IMetadataStore in a PostgreSQL database."""

    harness = PostgresMetadataHarness


class TestPostgresLedgerStore(LedgerStoreSuite):
    """ILedgerStore in a PostgreSQL database."""

    harness = PostgresLedgerHarness
