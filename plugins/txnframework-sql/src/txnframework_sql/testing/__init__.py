"""
Harnesses for the suites of ``txnframework.testing``: one SQLite file for each test.

The harnesses over PostgreSQL, with a database for each test, are in ``txnframework_sql.testing.postgresql``; they need
the extras ``postgresql`` and ``testing-postgresql``.
"""

from __future__ import annotations

from txnframework_sql.testing.sqlite import SESSION_TTL_MS, SqlLedgerHarness, SqlMetadataHarness

__all__ = ["SESSION_TTL_MS", "SqlLedgerHarness", "SqlMetadataHarness"]
