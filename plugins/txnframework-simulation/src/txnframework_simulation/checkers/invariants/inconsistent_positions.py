"""
Inconsistent positions: one position has two messages, or a message has a different position than its sender received.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

from txnframework_simulation.checkers.facts import Facts, place_of, send_of
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, MessagePosition

NAME = "inconsistent positions"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    return [*_places(facts), *_messages(facts)]


def _places(facts: Facts) -> list[Violation]:
    """Find positions with two messages."""
    found = []
    known: dict[MessagePosition, tuple[str, Call]] = {}
    reported: set[MessagePosition] = set()
    observations = facts.observations
    answers = ((place_of(call), send_of(call).value, call) for one in facts.sends.values() for call in one)
    seen = ((one.seen.place, one.seen.value, one.call) for one in chain(observations.committed, observations.others))
    for place, value, call in chain(answers, seen):
        if place is None:
            continue
        before, first = known.setdefault(place, (value, call))
        if before != value and place not in reported:
            reported.add(place)
            found.append(violation(NAME, f"{place} is both {before!r} and {value!r}", (first, call)))
    return found


def _messages(facts: Facts) -> list[Violation]:
    """Find messages whose position or transaction differs from the send."""
    found = []
    reported: set[tuple[str, str]] = set()
    for observation in chain(facts.observations.committed, facts.observations.others):
        seen, topic = observation.seen, observation.seen.place.topic
        sends = facts.sends.get((topic, seen.value))
        if sends is None or (topic, seen.value) in reported:
            continue
        same = [call for call in sends if send_of(call).txn == seen.txn]
        places = {place for call in same if (place := place_of(call)) is not None}
        if not same:
            sentence = f"{seen.value!r} was read as {_whose(seen.txn)}, in which it was not sent"
        elif len(same) == len([call for call in same if call.ok]) and seen.place not in places:
            sentence = f"{seen.value!r} was read from {seen.place}, and its sender got {_listed(places)}"
        else:
            continue
        reported.add((topic, seen.value))
        found.append(violation(NAME, sentence, (*sends, observation.call)))
    by_send: defaultdict[tuple[str, str, str | None, int], dict[MessagePosition, Call]] = defaultdict(dict)
    for (topic, value), sends in facts.sends.items():
        for call in sends:
            if (place := place_of(call)) is not None:
                by_send[topic, value, send_of(call).txn, send_of(call).branch].setdefault(place, call)
    for (_, value, txn, _), where in by_send.items():
        if len(where) > 1:
            sentence = f"{value!r} was sent again in {_whose(txn)} and confirmed at {_listed(set(where))}"
            found.append(violation(NAME, sentence, where.values()))
    return found


def _whose(txn: str | None) -> str:
    return "one outside transactions" if txn is None else f"one of transaction {txn}"


def _listed(places: set[MessagePosition]) -> str:
    return " and ".join(str(place) for place in sorted(places))
