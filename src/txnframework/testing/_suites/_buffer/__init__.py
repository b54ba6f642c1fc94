"""The suite of ITransactionBuffer and of the optional interfaces of a buffer, over any coordinator and any stores."""

from __future__ import annotations

from typing import ClassVar

from txnframework.testing._suites._buffer.adoption import AdoptionRules
from txnframework.testing._suites._buffer.announcements import AnnouncementRules, PlanRules
from txnframework.testing._suites._buffer.commit_order import CommitOrderRules
from txnframework.testing._suites._buffer.recovery import RecoveryRules
from txnframework.testing._suites._buffer.steps import StepRules
from txnframework.testing._suites._buffer.visibility import VisibilityRules
from txnframework.testing._suites._buffer.writes import WriteRules
from txnframework.testing.harness import Harness
from txnframework.testing.world import World


class RulesWithoutSteps(RecoveryRules, PlanRules, AnnouncementRules, WriteRules, CommitOrderRules, VisibilityRules):
    """The rules of a buffer without ``StepRules``, for stores over which those run across processes."""


class BufferSuite(StepRules, AdoptionRules, RulesWithoutSteps):
    """All rules of a buffer: subclass as ``TestX(BufferSuite)`` and set ``harness`` to a ``WorldHarness``."""

    harness: ClassVar[type[Harness[World]]]
