"""Ack lost: a message is delivered again, or reported as pending, after its acknowledgment certainly took effect."""

from __future__ import annotations

from txnframework_simulation.checkers.acknowledgments import Ack
from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.subscriptions import Subscription
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import AckFound, AskAck, Call, Drained, Receive, SeenMessage

NAME = "ack lost"
PENDING = "PENDING"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for subscription in facts.subscriptions.values():
        found += _drained(subscription)
        found += _delivered(subscription)
        found += _asked(subscription)
        found += _begun_anew(subscription)
    return found


def _drained(subscription: Subscription) -> list[Violation]:
    found = []
    for drain in subscription.drains:
        for seen in drain.reply.messages if isinstance(drain.reply, Drained) else ():
            ack = subscription.acks.effective(seen.place, seen.incarnation)
            if ack is not None and ack.effective_at < drain.began:
                found.append(_again(subscription, seen, ack, drain, "in the drain"))
    return found


def _delivered(subscription: Subscription) -> list[Violation]:
    """
    Find deliveries during the run that came after the acknowledgment.

    A consumer of another process may return, late, a message that it was sent earlier, because a process can be paused
    for any time. So only certainly later deliveries count: those to consumers that joined after the acknowledgment, and
    those to the consumer that made it.
    """
    found = []
    for observation in subscription.deliveries:
        seen, receive = observation.seen, observation.call
        assert isinstance(receive.operation, Receive)
        ack = subscription.acks.effective(seen.place, seen.incarnation)
        if ack is None or ack.effective_at > receive.began:
            continue
        consumer = receive.operation.consumer
        joined = subscription.consumers.get(consumer)
        if ack.consumer == consumer or (joined is not None and joined.began > ack.effective_at):
            found.append(_again(subscription, seen, ack, receive, f"to consumer {consumer}"))
    return found


def _asked(subscription: Subscription) -> list[Violation]:
    if subscription.moved:
        return []
    found = []
    for call in subscription.asked:
        if not (isinstance(call.operation, AskAck) and isinstance(call.reply, AckFound)):
            continue
        place = call.operation.place
        incarnations = {one.incarnation for one in subscription.acks.singles.get(place, ())}
        for incarnation in incarnations if call.reply.state == PENDING else ():
            ack = subscription.acks.effective(place, incarnation)
            if ack is not None and ack.effective_at < call.began:
                sentence = f"{place} is reported as pending on subscription {subscription.name}"
                found.append(violation(NAME, f"{sentence}, {_how(ack)}", (*_shown(ack), call)))
    return found


def _begun_anew(subscription: Subscription) -> list[Violation]:
    """Count incarnations: a new incarnation of a cursor begins only after a seek or a deletion of the subscription."""
    first: dict[str, dict[int, Call]] = {}
    for observation in subscription.deliveries:
        first.setdefault(observation.seen.place.segment, {}).setdefault(observation.seen.incarnation, observation.call)
    for drain in subscription.drains:
        for seen in drain.reply.messages if isinstance(drain.reply, Drained) else ():
            first.setdefault(seen.place.segment, {}).setdefault(seen.incarnation, drain)
    reasons = (*subscription.seeks, *subscription.given_up)
    found = []
    for segment, lives in first.items():
        if len(lives) > 1 + len(reasons):
            sentence = f"subscription {subscription.name} of {segment} was created again {len(lives) - 1} times"
            why = f"and was moved or deleted {len(reasons)} times"
            found.append(violation(NAME, f"{sentence}, {why}", (*lives.values(), *reasons)))
    return found


def _again(subscription: Subscription, seen: SeenMessage, ack: Ack, call: Call, where: str) -> Violation:
    sentence = (
        f"{seen.value!r} at {seen.place} was delivered again on subscription {subscription.name} {where}, {_how(ack)}"
    )
    return violation(NAME, sentence, (*_shown(ack), call))


def _how(ack: Ack) -> str:
    if ack.transaction is None:
        return "after it was acknowledged"
    return f"after transaction {ack.transaction.txn} had acknowledged it and was committed"


def _shown(ack: Ack) -> tuple[Call, ...]:
    return (ack.call, *(() if ack.transaction is None else ack.transaction.committed[:1]))
