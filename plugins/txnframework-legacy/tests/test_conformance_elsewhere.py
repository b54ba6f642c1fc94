"""
The log family keeps the rules of its roles over other stores as well, with either of its buffers.

Over those whose plugins are installed, which start the servers that they need. Run on request, but for a share of it
over SQLite: of each role what meets its stores in the most places.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from test_conformance import LogFamilyInMemory

from txnframework.testing import BufferSuite, CoordinatorSuite, PendingAckSuite

STORES: dict[str, dict[str, Any]] = {}

if TYPE_CHECKING or importlib.util.find_spec("txnframework_sql"):
    from txnframework_sql.testing import SqlLedgerHarness, SqlMetadataHarness

    STORES["Sqlite"] = {"stores": SqlMetadataHarness, "ledgers": SqlLedgerHarness}

if TYPE_CHECKING or importlib.util.find_spec("asyncpg"):
    from txnframework_sql.testing.postgresql import PostgresLedgerHarness, PostgresMetadataHarness

    STORES["Postgresql"] = {"stores": PostgresMetadataHarness, "ledgers": PostgresLedgerHarness}

if TYPE_CHECKING or importlib.util.find_spec("txnframework_zookeeper"):
    from txnframework_zookeeper.testing import ZooKeeperMetadataHarness

    STORES["ZooKeeper"] = {"stores": ZooKeeperMetadataHarness}  # which keeps no messages: ledgers in memory

if TYPE_CHECKING or importlib.util.find_spec("txnframework_nats"):
    from txnframework_nats.testing import NatsMetadataHarness
    from txnframework_nats.testing.ledgers import NatsLedgerHarness

    STORES["Nats"] = {"stores": NatsMetadataHarness, "ledgers": NatsLedgerHarness}

MARKER: dict[str, Any] = {}
SIDECAR: dict[str, Any] = {}

if TYPE_CHECKING or importlib.util.find_spec("txnframework_sidecar"):
    from txnframework_sidecar.plugin import txnframework_buffers as sidecar_buffers

    SIDECAR["buffer"] = sidecar_buffers()[0]

SHARE: dict[type[Any], tuple[str, ...]] = {
    CoordinatorSuite: (
        "test_racing_ends",
        "test_lost_reply",
        "test_after_a_restart",
        "test_settles_what_others_left",
        "test_woken_by_an_end",
    ),
    PendingAckSuite: (
        "test_conflict",
        "test_two_processes",
        "test_one_of_many_wins",
        "test_restart",
        "test_timed_out_transaction_gives_back",
    ),
    BufferSuite: (
        "test_open_pins",
        "test_commits_are_read_in_their_order",
        "test_woken_by_the_end_of_a_transaction",
        "test_woken_by_a_commit",
        "test_two_processes_write_in_one_transaction",
        "test_copy_of_an_aborted_transaction_is_replaced",
        "test_rolled_over_in_the_middle",
        "test_restart",
        "test_waiting_reads_nothing",
    ),
}


def suites_over(stores: str) -> dict[str, type[Any]]:
    """Return the suites over these stores, by name; ``always`` names the tests that are not left to a request."""
    found: dict[str, type[Any]] = {}
    parts = [(suite, "Marker", MARKER) for suite in SHARE] + [(BufferSuite, "Sidecar", SIDECAR)] * bool(SIDECAR)
    for suite, what, own in parts:
        harness = type(f"{what}In{stores}", (LogFamilyInMemory,), {**STORES[stores], **own})
        name = f"Test{suite.__name__.removesuffix('Suite')}Of{harness.__name__}"
        always = SHARE[suite] if stores == "Sqlite" else ()
        found[name] = type(name, (suite,), {"harness": harness, "always": always, "__doc__": f"Over {stores}."})
    return found


for _stores in STORES:
    globals().update(suites_over(_stores))
