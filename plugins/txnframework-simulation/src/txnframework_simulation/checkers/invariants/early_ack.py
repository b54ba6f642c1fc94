"""
Early ack: a message is reported as acknowledged before a commit of an acknowledging transaction was requested.

A message that was observed in a dead-letter topic of the subscription may be reported at any time: a consumer moved it.
"""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.subscriptions import Subscription
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import AckFound, AskAck, Call, MessagePosition

NAME = "early ack"
DELETED = "DELETED"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for subscription in facts.subscriptions.values():
        moved = _moved_places(facts, subscription)
        for call in subscription.asked:
            if not (isinstance(call.operation, AskAck) and isinstance(call.reply, AckFound)):
                continue
            place = call.operation.place
            if call.reply.state == DELETED and place not in moved and not _may_be_done(subscription, place, call):
                sentence = f"{place} is reported as acknowledged on subscription {subscription.name}"
                acks = [ack.call for ack in subscription.acks.tried(place, -1) if ack.call.began < call.ended]
                found.append(violation(NAME, f"{sentence} before any acknowledgment of it could count", (*acks, call)))
    return found


def _moved_places(facts: Facts, subscription: Subscription) -> set[MessagePosition]:
    """Return the places in the topic of messages that were observed in its dead-letter topics."""
    values = facts.moved_from(subscription)
    if not values:
        return set()
    seen = (one.seen for one in (*facts.observations.committed, *facts.observations.others))
    return {one.place for one in seen if one.place.topic == subscription.topic and one.value in values}


def _may_be_done(subscription: Subscription, place: MessagePosition, call: Call) -> bool:
    """Whether an acknowledgment may have counted by the time of a call, or the subscription began later."""
    start = subscription.start(place)
    if subscription.moved or start is None or not start.everything:
        return True
    # Any cumulative acknowledgment that may ever count explains the report, whenever it was made.
    return any(
        ack.call.began < call.ended and (ack.transaction is None or ack.transaction.commit_asked_at < call.ended)
        for ack in subscription.acks.singles.get(place, ())
        if ack.possible
    ) or subscription.acks.possible_cumulatively(place)
