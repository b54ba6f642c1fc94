"""Non-monotonic read: a reader skips a committed message that a client read before the reader was opened."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.observations import Observation, ReaderView, by_segment
from txnframework_simulation.checkers.violations import Violation, violation

NAME = "non-monotonic read"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    known = {
        segment: _first_by_place(observations)
        for segment, observations in by_segment(facts.observations.committed).items()
    }
    return [
        broken for view in facts.observations.views if view.from_earliest for broken in _passed_over(facts, view, known)
    ]


def _first_by_place(observations: list[Observation]) -> list[Observation]:
    """Return the first observation of each message, in the order of the messages."""
    first: dict[object, Observation] = {}
    for observation in observations:
        first.setdefault(observation.seen.place, observation)
    return sorted(first.values(), key=lambda one: one.seen.place)


def _passed_over(facts: Facts, view: ReaderView, known: dict[str, list[Observation]]) -> list[Violation]:
    found = []
    for segment, observations in by_segment(view.observations).items():
        got = {one.seen.place for one in observations}
        furthest = max(observations, key=lambda one: one.seen.place)
        for before in known[segment]:
            place = before.seen.place
            if place > furthest.seen.place:
                break
            if place not in got and before.at < view.began and not facts.is_trimmed(place):
                sentence = f"{view.name} got {furthest.seen.value!r} at {furthest.seen.place} and skipped"
                rest = f"{before.seen.value!r} at {place}, which had been read before it began"
                found.append(violation(NAME, f"{sentence} {rest}", (before.call, furthest.call)))
    return found
