"""Order violation: messages are stored, or are delivered for the first time, in the wrong order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from txnframework_simulation.checkers.facts import Facts, place_of, send_of
from txnframework_simulation.checkers.observations import Observation
from txnframework_simulation.checkers.segments import along, descends
from txnframework_simulation.checkers.subscriptions import KEYED_TYPES, ORDERED_TYPES, Subscription
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, MessagePosition, Receive, Received

NAME = "order violation"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = [*_sent(facts)]
    for view in facts.observations.views:
        found += _in_order(view.name, view.observations)
    for subscription in facts.subscriptions.values():
        found += _delivered(subscription, _left_out(facts, subscription))
    return found


# -- the order in which messages are stored -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stored:
    """A confirmed message: its first send, its first confirmation, and its position."""

    began: int
    ended: int
    place: MessagePosition
    call: Call


def _sent(facts: Facts) -> list[Violation]:
    """
    Find two messages of one key or segment: the second was sent after the first was confirmed, but has a lower
    position.
    """
    chains: dict[Hashable, list[_Stored]] = {}
    for (topic, _), sends in facts.sends.items():
        confirmed = [(call, place) for call in sends if (place := place_of(call)) is not None]
        # A later message may have a lower position than a message that gets its position at the commit.
        if not confirmed or any(call.began in facts.aside for call, _ in confirmed):
            continue
        call, place = min(confirmed, key=lambda one: one[0].ended)
        # A message that is sent again in another transaction may have several places, so the copies cannot be
        # distinguished.
        if any(other != place for _, other in confirmed) or len(confirmed) != len(sends):
            continue
        stored = _Stored(sends[0].began, call.ended, place, call)
        chains.setdefault(("segment", place.segment), []).append(stored)
        if send_of(call).key is not None:
            chains.setdefault(("key", topic, send_of(call).key), []).append(stored)
    found = []
    for some in chains.values():
        for before, after in _overtaken(some):
            sentence = f"{send_of(after.call).value!r} was sent after {send_of(before.call).value!r} had been confirmed"
            where = f"and is stored before it, at {after.place} and {before.place}"
            found.append(violation(NAME, f"{sentence}, {where}", (before.call, after.call)))
    return found


def _overtaken(stored: list[_Stored]) -> Iterator[tuple[_Stored, _Stored]]:
    """Yield pairs: the second message was sent after the first was confirmed, but has a lower position."""
    by_end = sorted(stored, key=lambda one: one.ended)
    furthest: _Stored | None = None
    at = 0
    for one in sorted(stored, key=lambda one: one.began):
        while at < len(by_end) and by_end[at].ended < one.began:
            if furthest is None or along(by_end[at].place) > along(furthest.place):
                furthest = by_end[at]
            at += 1
        if furthest is not None and along(one.place) < along(furthest.place):
            yield furthest, one


# -- the order in which messages are delivered ----------------------------------------------------------


def _in_order(who: str, observations: Iterable[Observation]) -> list[Violation]:
    """
    Find a message that a reader received out of order: a reader receives a segment in order, and after its ancestors.
    """
    last: dict[str, Observation] = {}
    for observation in observations:
        place = observation.seen.place
        before = last.get(place.segment)
        if before is not None and place < before.seen.place:
            return [_out_of_order(who, before, observation)]
        if before is None:
            child = next((one for name, one in last.items() if descends(name, place.segment)), None)
            if child is not None:
                return [_out_of_order(who, child, observation)]
        last[place.segment] = observation
    return []


def _left_out(facts: Facts, subscription: Subscription) -> set[tuple[MessagePosition, int]]:
    """
    Return the messages, by place and incarnation, of deliveries that the facts leave out.

    They were received while a deletion of the topic ran, so they may be of the deleted topic or of the next one.
    """
    if subscription.topic not in facts.deleted:
        return set()
    received = Counter(
        (seen.place, seen.incarnation)
        for call in facts.asked
        if isinstance(call.operation, Receive) and call.operation.subscription == subscription.name
        if isinstance(call.reply, Received)
        for seen in call.reply.messages
        if seen.place.topic == subscription.topic
    )
    kept = Counter((one.seen.place, one.seen.incarnation) for one in subscription.deliveries)
    return {*(received - kept)}


def _delivered(subscription: Subscription, left_out: set[tuple[MessagePosition, int]]) -> list[Violation]:
    """
    Find first deliveries out of order: the order is that of a segment, or with ``key_shared`` that of a key.

    A message may be redelivered at any time, also if its first delivery is ``left_out``. After a seek, only messages of
    one incarnation of a cursor are compared.
    """
    type = subscription.type
    if type not in ORDERED_TYPES | KEYED_TYPES:
        return []
    came = set(left_out)
    last: dict[Hashable, Observation] = {}
    found = []
    for observation in subscription.deliveries:
        seen = observation.seen
        if (seen.place, seen.incarnation) in came:
            continue
        came.add((seen.place, seen.incarnation))
        for chain in _chains(subscription, type, observation):
            before = last.get(chain)
            if before is not None and along(seen.place) < along(before.seen.place):
                found.append(_out_of_order(f"subscription {subscription.name}", before, observation))
                break
            last[chain] = observation
    return found


def _chains(subscription: Subscription, type: str, observation: Observation) -> list[Hashable]:
    """Return the ordered sequences to which a delivery belongs."""
    seen = observation.seen
    chains: list[Hashable] = []
    if type in ORDERED_TYPES:
        chains.append(("segment", seen.place.segment, seen.incarnation))
    elif seen.key is not None:
        chains.append(("key of a segment", seen.place.segment, seen.incarnation, seen.key))
    if seen.key is not None and not subscription.moved:
        chains.append(("key", seen.key))
    return chains


def _out_of_order(who: str, before: Observation, after: Observation) -> Violation:
    one, two = before.seen, after.seen
    sentence = f"{who} got {two.value!r} at {two.place} for the first time after {one.value!r} at {one.place}"
    return violation(NAME, sentence, (before.call, after.call))
