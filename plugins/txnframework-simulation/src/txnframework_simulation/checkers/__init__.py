"""
Checkers: show from a history alone that a promise was broken.

``check`` applies all rules; each is a module of ``invariants``. The rules share ``facts``, which are computed once from
``transactions``, ``observations`` of messages, ``subscriptions`` and ``acknowledgments``.

A checker reports only certain violations. An operation without a definite reply may or may not have happened. The
checker reports nothing if one of the two is legal.
"""

from __future__ import annotations

from collections.abc import Collection

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.invariants import CHECKS
from txnframework_simulation.checkers.violations import Violation
from txnframework_simulation.history import History

__all__ = ["INVARIANTS", "Violation", "check"]

INVARIANTS = tuple(CHECKS)
"""The names of all rules."""


def check(history: History, invariants: Collection[str] = INVARIANTS) -> list[Violation]:
    """
    Return every violation of these rules that the history shows.

    It costs about as much as sorting the history: 100,000 events take seconds.
    """
    facts = Facts.of(history)
    return [broken for name in invariants for broken in CHECKS[name](facts)]
