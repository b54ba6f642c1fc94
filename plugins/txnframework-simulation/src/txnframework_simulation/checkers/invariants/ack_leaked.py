"""Ack leaked: a message is not redelivered although every acknowledgment of it was aborted or refused."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.invariants.undelivered import find_undelivered
from txnframework_simulation.checkers.violations import Violation, violation

NAME = "ack leaked"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for one in find_undelivered(facts):
        if one.tried:
            sentence = (
                f"{one.seen.value!r} at {one.seen.place} is not delivered to subscription {one.subscription.name}"
            )
            ends = [call for ack in one.tried if ack.transaction is not None for call in ack.transaction.aborted[:1]]
            shown = (*(ack.call for ack in one.tried), *ends, one.topic_drain, one.drain)
            found.append(violation(NAME, f"{sentence}, and no acknowledgment of it counts", shown))
    return found
