"""Non-monotonic read: a committed message that somebody got was passed over by a reader that was opened later."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.sightings import Reading, Sighting, by_segment
from txnframework_simulation.checkers.violations import Violation, violation

NAME = "non-monotonic read"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    known = {
        segment: _first_by_place(sightings) for segment, sightings in by_segment(facts.sightings.committed).items()
    }
    return [
        broken
        for reading in facts.sightings.readings
        if reading.from_earliest
        for broken in _passed_over(facts, reading, known)
    ]


def _first_by_place(sightings: list[Sighting]) -> list[Sighting]:
    """Return who got each message first, in the order of the messages."""
    first: dict[object, Sighting] = {}
    for sighting in sightings:
        first.setdefault(sighting.seen.place, sighting)
    return sorted(first.values(), key=lambda one: one.seen.place)


def _passed_over(facts: Facts, reading: Reading, known: dict[str, list[Sighting]]) -> list[Violation]:
    found = []
    for segment, sightings in by_segment(reading.sightings).items():
        got = {one.seen.place for one in sightings}
        furthest = max(sightings, key=lambda one: one.seen.place)
        for before in known[segment]:
            place = before.seen.place
            if place > furthest.seen.place:
                break
            if place not in got and before.at < reading.began and not facts.is_trimmed(place):
                said = f"{reading.name} got {furthest.seen.value!r} at {furthest.seen.place} and passed over"
                rest = f"{before.seen.value!r} at {place}, which had been read before it began"
                found.append(violation(NAME, f"{said} {rest}", (before.call, furthest.call)))
    return found
