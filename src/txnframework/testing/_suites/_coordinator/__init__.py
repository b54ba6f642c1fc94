"""The suites of ITransactionCoordinator and its refinements, over any stores."""

from __future__ import annotations

from typing import ClassVar

from txnframework.testing._suites._coordinator.applications import ApplicationRules
from txnframework.testing._suites._coordinator.begins import BeginRules
from txnframework.testing._suites._coordinator.co_commits import CoCommitDecisionRules
from txnframework.testing._suites._coordinator.ends import EndRules
from txnframework.testing._suites._coordinator.expiry import CollectRules, ExpireRules
from txnframework.testing._suites._coordinator.joint_acks import JointAckRules
from txnframework.testing._suites._coordinator.joint_commits import JointCommitRules
from txnframework.testing._suites._coordinator.joint_rows import JointRowCommitRules
from txnframework.testing._suites._coordinator.listings import EndedWatchRules, ListRules, OutstandingRules
from txnframework.testing.world import WorldHarness


class CoordinatorSuite(
    ApplicationRules,
    CoCommitDecisionRules,
    CollectRules,
    ExpireRules,
    EndedWatchRules,
    OutstandingRules,
    ListRules,
    EndRules,
    BeginRules,
):
    """All rules of a coordinator: subclass as ``TestX(CoordinatorSuite)`` and set ``harness`` to a ``WorldHarness``."""

    harness: ClassVar[type[WorldHarness]]


class JointCommitSuite(JointAckRules, JointRowCommitRules, JointCommitRules):
    """
    The rules of a family whose transactions may be one step: IJointCoordinator, IPlannableBuffer and IPendingAckStore.

    The harness opens stores in ``one_database``.
    """

    harness: ClassVar[type[WorldHarness]]
