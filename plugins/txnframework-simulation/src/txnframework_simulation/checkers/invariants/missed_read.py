"""
Missed read: a reader skipped a message that counts, or ended before a message although no transaction held it back.
"""

from __future__ import annotations

from collections import defaultdict

from txnframework_simulation.checkers.facts import Facts, is_aside, place_of, send_of
from txnframework_simulation.checkers.observations import ReaderView
from txnframework_simulation.checkers.transactions import NEVER
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, MessagePosition

NAME = "missed read"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    counting = _counting(facts)
    return [
        broken
        for view in facts.observations.views
        if view.from_earliest
        for broken in _missed(facts, view, counting.get(view.topic, {}))
    ]


def _counting(facts: Facts) -> dict[str, dict[MessagePosition, Call]]:
    """Return, by topic, the places of messages that certainly count, with the sends that returned the places."""
    found: defaultdict[str, dict[MessagePosition, Call]] = defaultdict(dict)
    for (topic, _), sends in facts.sends.items():
        for call in sends:
            place = place_of(call)
            if place is None or is_aside(place) or facts.is_trimmed(place) or facts.committed_at(call) == NEVER:
                continue
            before = found[topic].get(place)
            if before is None or facts.readable_at(call) < facts.readable_at(before):
                found[topic][place] = call
    return dict(found)


def _missed(facts: Facts, view: ReaderView, counting: dict[MessagePosition, Call]) -> list[Violation]:
    """
    Find messages that the reader should have returned.

    Only the first of each segment is reported.
    """
    got = {one.seen.place for one in view.observations}
    furthest = view.furthest
    held_back_from = facts.may_be_held_back_from(view.topic, view.began) if view.whole else -1
    reported: set[str] = set()
    found = []
    for place, call in counting.items():
        if place in got or place.segment in reported:
            continue
        sentence = f"{send_of(call).value!r} at {place}"
        came = furthest.get(place.segment)
        shown = (call, *_committing(facts, call), *(one.call for one in view.observations[-1:]))
        if came is not None and place < came:
            reported.add(place.segment)
            found.append(violation(NAME, f"{view.name} reached {came} and skipped {sentence}, which counts", shown))
        elif facts.readable_at(call) < view.began and call.ended < held_back_from:
            reported.add(place.segment)
            why = "which counted before it was opened, and nothing held back"
            found.append(violation(NAME, f"{view.name} ended before {sentence}, {why}", shown))
    return found


def _committing(facts: Facts, call: Call) -> list[Call]:
    txn = send_of(call).txn
    return [] if txn is None else facts.transactions[txn].committed[:1]
