"""The suite of IPendingAckStore, over any coordinator and any stores."""

from __future__ import annotations

from typing import ClassVar

from txnframework.testing._suites._pending_ack.ack_kinds import BatchIndexRules, CoveringRules, CumulativeRules
from txnframework.testing._suites._pending_ack.additions import AddRules
from txnframework.testing._suites._pending_ack.growth import GrowRules
from txnframework.testing._suites._pending_ack.races import AddRaceRules
from txnframework.testing._suites._pending_ack.seals import SealRules
from txnframework.testing._suites._pending_ack.settlement import RecoverRules, SettleRules
from txnframework.testing.world import WorldHarness


class PendingAckSuite(
    SealRules,
    GrowRules,
    AddRaceRules,
    RecoverRules,
    SettleRules,
    CoveringRules,
    CumulativeRules,
    BatchIndexRules,
    AddRules,
):
    """
    All rules of a pending-ack store: subclass as ``TestX(PendingAckSuite)`` and set ``harness`` to a ``WorldHarness``.
    """

    harness: ClassVar[type[WorldHarness]]
