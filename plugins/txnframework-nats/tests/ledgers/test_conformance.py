"""The ledgers keep the rules of their role on one server."""

from __future__ import annotations

from txnframework.testing import LedgerStoreSuite
from txnframework_nats.testing.ledgers import NatsLedgerHarness


class TestNatsLedgers(LedgerStoreSuite):
    """ILedgerStore on JetStream."""

    harness = NatsLedgerHarness
