"""Duplicate: a committed message stands at two places, or comes twice to one reader or in one drain."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.sightings import Sighting
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Drained, Place

NAME = "duplicate"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    first: dict[tuple[str, str], Sighting] = {}
    told: set[tuple[str, str]] = set()
    for sighting in facts.sightings.committed:
        key = (sighting.seen.place.topic, sighting.seen.value)
        if any(one.moved for one in facts.letters.get(key[0], ())):
            continue  # what came anew after somebody sought may be moved again
        before = first.setdefault(key, sighting)
        if before.seen.place != sighting.seen.place and key not in told:
            told.add(key)
            said = f"{sighting.seen.value!r} is committed at {before.seen.place} and at {sighting.seen.place}"
            found.append(violation(NAME, said, (before.call, sighting.call)))
    for reading in facts.sightings.readings:
        found += _twice(reading.name, reading.sightings)
    for subscription in facts.subscriptions.values():
        for call in subscription.drains:
            if isinstance(call.reply, Drained):
                name = f"the drain of subscription {subscription.name} of {subscription.topic}"
                found += _twice(name, [Sighting(seen, call) for seen in call.reply.messages])
    return found


def _twice(who: str, sightings: Iterable[Sighting]) -> list[Violation]:
    found = []
    first: dict[Place, Sighting] = {}
    for sighting in sightings:
        before = first.setdefault(sighting.seen.place, sighting)
        if before is not sighting:
            said = f"{who} got {sighting.seen.value!r} from {sighting.seen.place} twice"
            found.append(violation(NAME, said, (before.call, sighting.call)))
    return found
