"""Zombie operation: what was done in a transaction after its end, or under a branch that does not count, has effect."""

from __future__ import annotations

from txnframework_simulation.checkers.acknowledgments import Ack
from txnframework_simulation.checkers.facts import Facts, send_of
from txnframework_simulation.checkers.sightings import Sighting
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Place

NAME = "zombie operation"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    told: set[Place] = set()
    for sighting in facts.sightings.committed:
        if sighting.seen.place in told:
            continue
        broken = _written(facts, sighting)
        if broken is not None:
            told.add(sighting.seen.place)
            found.append(broken)
    for subscription in facts.subscriptions.values():
        before: set[tuple[Place, str, int]] = set()
        for ack in sorted(subscription.acks.all, key=lambda one: one.call.began):
            if ack.fate is None or ack.derived:
                continue
            same = (ack.place, ack.fate.txn, ack.branch)
            # Repeating one is confirmed at any time: it stands there already.
            if ack.call.ok and ack.call.began > ack.fate.ended_at and same not in before:
                found.append(_acknowledged(ack))
            if ack.call.possible:
                before.add(same)
    return found


def _written(facts: Facts, sighting: Sighting) -> Violation | None:
    """Judge a message that came as committed, by the sends that it may be of."""
    seen = sighting.seen
    fate = None if seen.txn is None else facts.fates.get(seen.txn)
    if fate is None:
        return None
    sends = facts.sends.get((seen.place.topic, seen.value), ())
    sends = [call for call in sends if send_of(call).txn == seen.txn]
    if not sends:
        return None
    shown = (*sends, *fate.commits, sighting.call)
    if all(call.began > fate.ended_at for call in sends):
        said = f"{seen.value!r} was sent in transaction {seen.txn} after that had ended, and came from {seen.place}"
        return violation(NAME, said, shown)
    if fate.commits and not any(fate.may_count(send_of(call).branch) for call in sends):
        branch = send_of(sends[0]).branch
        said = f"{seen.value!r} came from {seen.place}, and transaction {seen.txn} was committed without its branch"
        return violation(NAME, f"{said} {branch}", shown)
    return None


def _acknowledged(ack: Ack) -> Violation:
    assert ack.fate is not None
    said = f"{ack.place} was acknowledged in transaction {ack.fate.txn} after that had ended"
    ends = sorted((*ack.fate.committed, *ack.fate.aborted), key=lambda call: call.ended)
    return violation(NAME, said, (*ends[:1], ack.call))
