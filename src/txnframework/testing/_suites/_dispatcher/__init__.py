"""The suite of IDispatcher, for all subscription types."""

from __future__ import annotations

from typing import ClassVar

from txnframework.interfaces import IDispatcher
from txnframework.testing._suites._dispatcher.common import EveryTypeRules, OrderingRules
from txnframework.testing._suites._dispatcher.sequences import CallSequenceRules
from txnframework.testing._suites._dispatcher.types import (
    ExclusiveRules,
    FailoverRules,
    KeySharedRules,
    SharedRules,
)
from txnframework.testing.harness import Harness


class DispatcherSuite(
    CallSequenceRules, KeySharedRules, SharedRules, FailoverRules, ExclusiveRules, OrderingRules, EveryTypeRules
):
    """
    All rules of a dispatcher: subclass as ``TestX(DispatcherSuite)`` and set ``harness`` to a ``DispatcherHarness``.

    The tests follow from what the dispatcher declares: its order, whether its consumers stand by, and the standard type
    that it names, if any. The other tests are skipped.
    """

    harness: ClassVar[type[Harness[IDispatcher]]]
