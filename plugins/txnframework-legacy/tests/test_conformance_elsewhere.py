"""
The legacy family keeps the rules of its roles over other stores as well; run on request.

Over those whose plugins are installed, which start the servers that they need.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
from test_conformance import LogFamilyInMemory

from txnframework.testing import BufferSuite, CoordinatorSuite, PendingAckSuite, WorldHarness

pytestmark = pytest.mark.slow
HARNESSES: list[type[WorldHarness]] = []

if TYPE_CHECKING or importlib.util.find_spec("txnframework_sql"):
    from txnframework_sql.testing import SqlLedgerHarness, SqlMetadataHarness

    class LogFamilyInSqlite(LogFamilyInMemory):
        """Everything in SQLite files."""

        stores = SqlMetadataHarness
        ledgers = SqlLedgerHarness

    HARNESSES.append(LogFamilyInSqlite)

if TYPE_CHECKING or importlib.util.find_spec("asyncpg"):
    from txnframework_sql.testing.postgresql import PostgresLedgerHarness, PostgresMetadataHarness

    class LogFamilyInPostgresql(LogFamilyInMemory):
        """Everything in a PostgreSQL."""

        stores = PostgresMetadataHarness
        ledgers = PostgresLedgerHarness

    HARNESSES.append(LogFamilyInPostgresql)

if TYPE_CHECKING or importlib.util.find_spec("txnframework_zookeeper"):
    from txnframework_zookeeper.testing import ZooKeeperMetadataHarness

    class LogFamilyInZooKeeper(LogFamilyInMemory):
        """Records in a ZooKeeper, which keeps no messages, and ledgers in memory."""

        stores = ZooKeeperMetadataHarness

    HARNESSES.append(LogFamilyInZooKeeper)

for _harness in HARNESSES:
    for _suite in (CoordinatorSuite, PendingAckSuite, BufferSuite):
        _name = f"Test{_suite.__name__.removesuffix('Suite')}Of{_harness.__name__}"
        globals()[_name] = type(_name, (_suite,), {"harness": _harness, "__doc__": f"{_harness.__doc__}"})
