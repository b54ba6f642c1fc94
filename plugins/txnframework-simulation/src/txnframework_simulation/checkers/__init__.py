"""
Checkers: show from a history alone that a promise was broken.

``check`` applies all rules; each is a module of ``invariants``. What they have in common is gathered once: ``facts``,
from what is known of ``transactions``, ``observations`` of messages, ``subscriptions`` and ``acknowledgments``.

A checker tells only of what is certain. What a client was not told may have happened or not; where either would be
legal, nothing is sentence.
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
    Return every breach of these rules that the history shows.

    It costs about as much as sorting the history: 100,000 events take seconds.
    """
    facts = Facts.of(history)
    return [broken for name in invariants for broken in CHECKS[name](facts)]
