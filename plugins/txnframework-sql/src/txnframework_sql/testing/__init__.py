"""Harnesses for the suites of ``txnframework.testing``: one SQLite file, or one PostgreSQL database, for each test."""

from __future__ import annotations

from txnframework_sql.testing.postgresql import PostgresLedgerHarness, PostgresMetadataHarness
from txnframework_sql.testing.sqlite import SESSION_TTL_MS, SqlLedgerHarness, SqlMetadataHarness

__all__ = [
    "SESSION_TTL_MS",
    "PostgresLedgerHarness",
    "PostgresMetadataHarness",
    "SqlLedgerHarness",
    "SqlMetadataHarness",
]
