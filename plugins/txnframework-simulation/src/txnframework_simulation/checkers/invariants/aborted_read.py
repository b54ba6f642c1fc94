"""Aborted read (G1a): somebody got, as committed, what was aborted, what was refused, or what was not committed yet."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.sightings import Sighting
from txnframework_simulation.checkers.transactions import ABORTED
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, Place

NAME = "aborted read"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    told: set[Place] = set()
    for sighting in facts.sightings.committed:
        if sighting.seen.place in told or sighting.seen.place.topic not in facts.topics:
            continue
        if facts.is_letter(sighting.seen):
            continue  # the rule on dead letters tells of it
        broken = _judge(facts, sighting)
        if broken is not None:
            told.add(sighting.seen.place)
            found.append(broken)
    return found


def _judge(facts: Facts, sighting: Sighting) -> Violation | None:
    seen = sighting.seen
    came = f"{seen.value!r} came from {seen.place}"
    sends = facts.sends.get((seen.place.topic, seen.value), [])
    shown: tuple[Call | None, ...] = (*sends, sighting.call)
    if seen.txn is not None:
        fate = facts.fates.get(seen.txn)
        if fate is None:
            return violation(NAME, f"{came} as of transaction {seen.txn}, which nobody began", shown)
        shown = (fate.begun, *sends, *fate.commits, *fate.aborted[:1], sighting.call)
        if fate.state == ABORTED:
            return violation(NAME, f"{came}, and its transaction {seen.txn} was aborted", shown)
        if fate.commit_asked_at > sighting.at:
            said = f"{came} before anybody had asked to commit its transaction {seen.txn}"
            return violation(NAME, said, shown)
        return None
    if all(call.began > sighting.at for call in sends):
        return violation(NAME, f"{came}, and nobody had sent it", shown)
    if not any(call.possible for call in sends):
        return violation(NAME, f"{came}, and sending it had failed", shown)
    return None
