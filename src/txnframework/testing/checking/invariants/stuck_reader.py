"""Stuck reader: a drain does not end, or does not bring what nobody acknowledged, or a transaction stays open."""

from __future__ import annotations

from txnframework.testing.checking.facts import Facts
from txnframework.testing.checking.invariants.missing import missing
from txnframework.testing.checking.violations import Violation, violation
from txnframework.testing.history import DrainOutcome, DrainSubscription, DrainTopic, Outcome

NAME = "stuck reader"
_ENDED = ("COMMITTED", "ABORTED")


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for call in facts.calls:
        match call.operation, call.reply:
            case DrainTopic(topic=topic), _ if not call.ok:
                why = call.error or "nothing more happened"
                found.append(violation(NAME, f"reading {topic} did not come to an end: {why}", (call,)))
            case DrainSubscription(topic=topic, subscription=name), _ if not call.ok:
                why = call.error or "nothing more happened"
                said = f"receiving from subscription {name} of {topic} did not come to an end: {why}"
                found.append(violation(NAME, said, (call,)))
            case DrainOutcome(txn=txn), Outcome(state=state) if state not in _ENDED:
                begun = facts.fates[txn].begun
                found.append(violation(NAME, f"transaction {txn} is {state} in the end", (begun, call)))
    for one in missing(facts):
        if not one.tried:
            said = f"{one.seen.value!r} at {one.seen.place} does not come to subscription {one.subscription.name}"
            sends = facts.sends.get((one.seen.place.topic, one.seen.value), [])
            shown = (*sends, one.topic_drain, one.drain)
            found.append(violation(NAME, f"{said}, and nobody acknowledged it", shown))
    return found
