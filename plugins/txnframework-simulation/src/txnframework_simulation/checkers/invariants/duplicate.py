"""Duplicate: a committed message has two positions, or is delivered twice to one reader or in one drain."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.observations import Observation
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Drained, MessagePosition

NAME = "duplicate"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    first: dict[tuple[str, str], Observation] = {}
    reported: set[tuple[str, str]] = set()
    for observation in facts.observations.committed:
        key = (observation.seen.place.topic, observation.seen.value)
        if any(one.moved for one in facts.letters.get(key[0], ())):
            continue  # a message redelivered after a seek may be moved again
        before = first.setdefault(key, observation)
        if before.seen.place != observation.seen.place and key not in reported:
            reported.add(key)
            sentence = f"{observation.seen.value!r} is committed at {before.seen.place} and at {observation.seen.place}"
            found.append(violation(NAME, sentence, (before.call, observation.call)))
    for view in facts.observations.views:
        found += _twice(view.name, view.observations)
    for subscription in facts.subscriptions.values():
        for call in subscription.drains:
            if isinstance(call.reply, Drained):
                name = f"the drain of subscription {subscription.name} of {subscription.topic}"
                found += _twice(name, [Observation(seen, call) for seen in call.reply.messages])
    return found


def _twice(who: str, observations: Iterable[Observation]) -> list[Violation]:
    found = []
    first: dict[MessagePosition, Observation] = {}
    for observation in observations:
        before = first.setdefault(observation.seen.place, observation)
        if before is not observation:
            sentence = f"{who} got {observation.seen.value!r} from {observation.seen.place} twice"
            found.append(violation(NAME, sentence, (before.call, observation.call)))
    return found
