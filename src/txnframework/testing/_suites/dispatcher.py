"""The suite of IDispatcher, of every subscription type."""

from __future__ import annotations

from typing import ClassVar

from txnframework.interfaces import IDispatcher
from txnframework.testing._suites._dispatcher.every_type import EveryTypeRules
from txnframework.testing._suites._dispatcher.ordering import OrderingRules
from txnframework.testing._suites._dispatcher.sequences import SequenceRules
from txnframework.testing._suites._dispatcher.types import (
    ExclusiveRules,
    FailoverRules,
    KeySharedRules,
    SharedRules,
)
from txnframework.testing.harness import Harness


class DispatcherSuite(
    SequenceRules, KeySharedRules, SharedRules, FailoverRules, ExclusiveRules, OrderingRules, EveryTypeRules
):
    """
    Every rule of a dispatcher: subclass as ``TestX(DispatcherSuite)`` and name the harness, a ``DispatcherHarness``.

    What is tested follows from what the dispatcher declares: its order, whether its consumers stand by, and the rules
    of a standard type if it names one. The other rules are skipped.
    """

    harness: ClassVar[type[Harness[IDispatcher]]]
