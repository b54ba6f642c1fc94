"""The suite of IPendingAckStore, over any coordinator and any stores."""

from __future__ import annotations

from typing import ClassVar

from txnframework.testing._suites._pending_ack.adding import AddRules
from txnframework.testing._suites._pending_ack.covering import CoveringRules
from txnframework.testing._suites._pending_ack.growing import GrowRules
from txnframework.testing._suites._pending_ack.kinds import BatchIndexRules, CumulativeRules
from txnframework.testing._suites._pending_ack.races import AddRaceRules
from txnframework.testing._suites._pending_ack.settling import RecoverRules, SettleRules
from txnframework.testing.world import WorldHarness


class PendingAckSuite(
    GrowRules, AddRaceRules, RecoverRules, SettleRules, CoveringRules, CumulativeRules, BatchIndexRules, AddRules
):
    """
    All rules of a pending-ack store: subclass as ``TestX(PendingAckSuite)`` and set ``harness`` to a ``WorldHarness``.
    """

    harness: ClassVar[type[WorldHarness]]
