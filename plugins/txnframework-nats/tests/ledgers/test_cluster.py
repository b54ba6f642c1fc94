"""The ledgers keep the rules of their role on a cluster of three servers, through a proxy."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

import pytest

from txnframework.testing import LedgerStoreSuite
from txnframework_nats.ledgers import NatsLedgerOptions
from txnframework_nats.testing.ledgers import NatsLedgerHarness
from txnframework_nats.testing.servers.nats import Nats

pytestmark = pytest.mark.slow


@cache
def _cluster() -> Nats:
    directory = tempfile.TemporaryDirectory(prefix="txnframework-nats-")
    nats = Nats(Path(directory.name), servers=3)
    atexit.register(directory.cleanup)
    atexit.register(nats.stop)
    nats.start()
    return nats


class NatsClusterLedgerHarness(NatsLedgerHarness):
    """Opens ledgers of which three servers keep each message."""

    options = NatsLedgerOptions(
        streams=1, replicas=3, connect_timeout_ms=4_000, request_timeout_ms=1_000, patience_ms=3_000
    )

    def hosts(self) -> str:
        """Return the servers of one cluster, which all tests share."""
        return _cluster().hosts


class TestNatsLedgersOnACluster(LedgerStoreSuite):
    """ILedgerStore on JetStream with three replicas."""

    harness = NatsClusterLedgerHarness
