"""Stuck reader: a drain does not end or lacks an unacknowledged message, or a transaction stays open."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts, is_aside, place_of, send_of
from txnframework_simulation.checkers.invariants.undelivered import find_undelivered
from txnframework_simulation.checkers.segments import descends
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import (
    Call,
    Consume,
    DrainConsumer,
    Drained,
    DrainOutcome,
    DrainSubscription,
    DrainTopic,
    MessagePosition,
    Outcome,
    Receive,
)

NAME = "stuck reader"
_ENDED = ("COMMITTED", "ABORTED")


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for call in facts.calls:
        match call.operation, call.reply:
            case DrainTopic(topic=topic), _ if not call.ok:
                why = call.error or "nothing more happened"
                found.append(violation(NAME, f"reading {topic} did not end: {why}", (call,)))
            case DrainSubscription(topic=topic, subscription=name), _ if not call.ok:
                why = call.error or "nothing more happened"
                sentence = f"receiving from subscription {name} of {topic} did not end: {why}"
                found.append(violation(NAME, sentence, (call,)))
            case DrainOutcome(txn=txn), Outcome(state=state) if state not in _ENDED:
                begun = facts.transactions[txn].begun
                found.append(violation(NAME, f"transaction {txn} is {state} at the end", (begun, call)))
    for call in facts.calls:
        if isinstance(call.operation, DrainConsumer) and isinstance(call.reply, Drained):
            found += _stranded(facts, call, call.operation, call.reply)
    for one in find_undelivered(facts):
        if not one.tried:
            sentence = (
                f"{one.seen.value!r} at {one.seen.place} is not delivered to subscription {one.subscription.name}"
            )
            sends = facts.sends.get((one.seen.place.topic, one.seen.value), [])
            shown = (*sends, one.topic_drain, one.drain)
            found.append(violation(NAME, f"{sentence}, and was not acknowledged", shown))
    return found


def _comes_of(place: MessagePosition, target: str) -> bool:
    """Whether a message is stored in a topic or segment, or in a descendant of the segment."""
    return target in (place.topic, place.segment) or descends(place.segment, target)


def _stranded(facts: Facts, call: Call, drain: DrainConsumer, reply: Drained) -> list[Violation]:
    """
    Return messages of the consumer's topics or segments, and of their descendants, that the only consumer did not
    receive. A reply that the consumer receives no more messages is also valid.
    """
    found = []
    for subscription in facts.subscriptions.values():
        joined = subscription.consumers.get(drain.consumer)
        if subscription.name != drain.subscription or joined is None or not isinstance(joined.operation, Consume):
            continue
        came = {seen.place for seen in reply.messages} | {
            one.seen.place
            for one in subscription.deliveries
            if isinstance(one.call.operation, Receive) and one.call.operation.consumer == drain.consumer
        }
        held_back_from = facts.may_be_held_back_from(subscription.topic, call.began)
        for send in (one for (topic, _), some in facts.sends.items() if topic == subscription.topic for one in some):
            place = place_of(send)
            if place is None or is_aside(place) or place in came or facts.is_trimmed(place):
                continue
            targets = joined.operation.topics if joined.operation.segment is None else (joined.operation.segment,)
            if not any(_comes_of(place, one) for one in targets):
                continue
            start = subscription.start(place)
            if start is None or not start.everything or send.ended >= held_back_from:
                continue
            if facts.readable_at(send) < call.began and subscription.acks.possible(place, start.began) is None:
                sentence = f"{send_of(send).value!r} at {place} was not delivered to consumer {drain.consumer}"
                sentence += f" of subscription {subscription.name}, which waited for what comes of {', '.join(targets)}"
                found.append(violation(NAME, f"{sentence}, and received no error", (joined, send, call)))
                break
    return found
