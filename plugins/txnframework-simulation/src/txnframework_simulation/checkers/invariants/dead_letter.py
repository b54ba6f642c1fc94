"""Dead letter: a message in its dead-letter topic was not moved there, or was not moved atomically."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts, place_of
from txnframework_simulation.checkers.observations import Observation
from txnframework_simulation.checkers.subscriptions import Subscription
from txnframework_simulation.checkers.transactions import NEVER
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, Consume, Drained, Receive

NAME = "dead letter"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    reported: set[tuple[str, str]] = set()
    for observation in facts.observations.committed:
        seen = observation.seen
        name = (seen.place.topic, seen.value)
        if name in reported or not facts.is_letter(seen):
            continue
        reported.add(name)
        broken = _judge(facts, observation, facts.letters[seen.place.topic])
        if broken is not None:
            found.append(broken)
    for subscription in facts.subscriptions.values():
        found += _too_often(subscription)
    return found


def _judge(facts: Facts, observation: Observation, subscriptions: list[Subscription]) -> Violation | None:
    seen = observation.seen
    if any(one.topic in facts.deleted for one in subscriptions):
        return None  # it may have been moved from a former topic
    sends = [call for one in subscriptions for call in facts.sends.get((one.topic, seen.value), ())]
    came = f"{seen.value!r} was read from {seen.place}"
    if not any(call.possible and call.began < observation.at for call in sends):
        return violation(NAME, f"{came}, and was not sent before", (*sends, observation.call))
    if seen.txn is None or any(one.moved for one in subscriptions):
        return None  # without a transaction, or after a seek, it may be in both topics for a while
    for one in subscriptions:
        again = _again(one, observation)
        if again is not None:
            sentence = f"{came}, where it was moved to, and still comes to subscription {one.name}"
            return violation(NAME, sentence, (*sends, observation.call, again))
        for ack in (ack for call in sends if (at := place_of(call)) for ack in one.acks.singles.get(at, ())):
            if ack.transaction is not None and ack.effective_at < NEVER:
                sentence = f"{came}, where it was moved to, and transaction {ack.transaction.txn} acknowledged it"
                shown = (*sends, ack.call, *ack.transaction.committed[:1], observation.call)
                return violation(NAME, f"{sentence} on subscription {one.name} and was committed", shown)
    return None


def _again(subscription: Subscription, letter: Observation) -> Call | None:
    """Return a drain of the subscription that began after the dead letter was seen, and still delivered the message."""
    for drain in subscription.drains:
        if drain.began < letter.at or not isinstance(drain.reply, Drained):
            continue
        if any(seen.value == letter.seen.value for seen in drain.reply.messages):
            return drain
    return None


def _too_often(subscription: Subscription) -> list[Violation]:
    """Find messages that were redelivered more often than the consumer allowed."""
    found = []
    for observation in subscription.deliveries:
        receive, seen = observation.call.operation, observation.seen
        assert isinstance(receive, Receive)
        joined = subscription.consumers.get(receive.consumer)
        asked = None if joined is None else joined.operation
        if isinstance(asked, Consume) and asked.dead_letters and seen.redelivery_count > asked.redeliveries_max:
            sentence = f"{seen.value!r} was delivered to consumer {receive.consumer} though it was redelivered"
            sentence += f" {seen.redelivery_count} times, and {asked.redeliveries_max} is the most"
            found.append(violation(NAME, sentence, (joined, observation.call)))
    return found
