"""Dead letter: a message was moved among the dead letters that does not belong there, or not from where it stood."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts, place_of
from txnframework_simulation.checkers.sightings import Sighting
from txnframework_simulation.checkers.subscriptions import Subscription
from txnframework_simulation.checkers.transactions import NEVER
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, Consume, Drained, Receive

NAME = "dead letter"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    told: set[tuple[str, str]] = set()
    for sighting in facts.sightings.committed:
        seen = sighting.seen
        name = (seen.place.topic, seen.value)
        if name in told or not facts.is_letter(seen):
            continue
        told.add(name)
        broken = _judge(facts, sighting, facts.letters[seen.place.topic])
        if broken is not None:
            found.append(broken)
    for subscription in facts.subscriptions.values():
        found += _too_often(subscription)
    return found


def _judge(facts: Facts, sighting: Sighting, subscriptions: list[Subscription]) -> Violation | None:
    seen = sighting.seen
    if any(one.topic in facts.deleted for one in subscriptions):
        return None  # it may have been moved from a former topic
    sends = [call for one in subscriptions for call in facts.sends.get((one.topic, seen.value), ())]
    came = f"{seen.value!r} came from {seen.place}"
    if not any(call.possible and call.began < sighting.at for call in sends):
        return violation(NAME, f"{came}, and nobody had sent it", (*sends, sighting.call))
    if seen.txn is None or any(one.moved for one in subscriptions):
        return None  # sent first and acknowledged then, or it came anew since: it may be both, for a while
    for one in subscriptions:
        again = _again(one, sighting)
        if again is not None:
            said = f"{came}, where it was moved to, and still comes to subscription {one.name}"
            return violation(NAME, said, (*sends, sighting.call, again))
        for ack in (ack for call in sends if (at := place_of(call)) for ack in one.acks.singles.get(at, ())):
            if ack.fate is not None and ack.effective_at < NEVER:
                said = f"{came}, where it was moved to, and transaction {ack.fate.txn}"
                shown = (*sends, ack.call, *ack.fate.committed[:1], sighting.call)
                return violation(NAME, f"{said} acknowledged it on subscription {one.name} and was committed", shown)
    return None


def _again(subscription: Subscription, letter: Sighting) -> Call | None:
    """Return a drain that began when the letter had been seen, and brought the message none the less."""
    for drain in subscription.drains:
        if drain.began < letter.at or not isinstance(drain.reply, Drained):
            continue
        if any(seen.value == letter.seen.value for seen in drain.reply.messages):
            return drain
    return None


def _too_often(subscription: Subscription) -> list[Violation]:
    """Nobody receives what was redelivered more often than it asked for."""
    found = []
    for sighting in subscription.deliveries:
        receive, seen = sighting.call.operation, sighting.seen
        assert isinstance(receive, Receive)
        joined = subscription.consumers.get(receive.consumer)
        asked = None if joined is None else joined.operation
        if isinstance(asked, Consume) and asked.dead_letters and seen.redelivery_count > asked.redeliveries_max:
            said = f"{seen.value!r} came to consumer {receive.consumer} though it was redelivered"
            said += f" {seen.redelivery_count} times, and {asked.redeliveries_max} is the most"
            found.append(violation(NAME, said, (joined, sighting.call)))
    return found
