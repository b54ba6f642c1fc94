"""The suite of ILedgerStore and IManagedLedger."""

from __future__ import annotations

from typing import ClassVar

from txnframework.interfaces import ILedgerStore
from txnframework.testing._suites._ledger.appends import AppendRules, LargeAnswerRules
from txnframework.testing._suites._ledger.colocation import ColocationRules
from txnframework.testing._suites._ledger.deduplication import DeduplicationRules
from txnframework.testing._suites._ledger.joint_appends import JointAppendRules
from txnframework.testing._suites._ledger.joint_refusals import JointRefusalRules
from txnframework.testing._suites._ledger.joint_rows import JointRowRules
from txnframework.testing._suites._ledger.races import RaceRules
from txnframework.testing._suites._ledger.store_copies import LedgerCopyRules
from txnframework.testing._suites._ledger.stores import StoreRules
from txnframework.testing._suites._ledger.tails import TailRules
from txnframework.testing.harness import Harness


class LedgerStoreSuite(
    ColocationRules,
    JointAppendRules,
    JointRefusalRules,
    JointRowRules,
    LedgerCopyRules,
    RaceRules,
    LargeAnswerRules,
    TailRules,
    DeduplicationRules,
    StoreRules,
    AppendRules,
):
    """All rules of a ledger store: subclass as ``TestX(LedgerStoreSuite)`` and set ``harness``."""

    harness: ClassVar[type[Harness[ILedgerStore]]]
