"""Messages that the final drain of a subscription must contain and lacks: an ack leaked, or a reader is stuck."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from txnframework_simulation.checkers.acknowledgments import Ack
from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.subscriptions import Subscription
from txnframework_simulation.history import Call, Drained, DrainTopic, SeenMessage


@dataclass(frozen=True, slots=True)
class UndeliveredMessage:
    """
    A committed message that is missing in a drain.

    ``tried``: acknowledgments of the message; all of them are without effect.
    """

    seen: SeenMessage
    subscription: Subscription
    topic_drain: Call
    drain: Call
    tried: list[Ack]


def find_undelivered(facts: Facts) -> Iterator[UndeliveredMessage]:
    """Yield the messages that certainly had to be delivered."""
    topics: defaultdict[str, list[Call]] = defaultdict(list)
    for call in facts.calls:
        if isinstance(call.operation, DrainTopic) and isinstance(call.reply, Drained):
            topics[call.operation.topic].append(call)
    for subscription in facts.subscriptions.values():
        moved = facts.moved_from(subscription)
        for drain in subscription.drains:
            before = [call for call in topics[subscription.topic] if call.ended < drain.began]
            if not before or not isinstance(drain.reply, Drained):
                continue
            topic_drain = max(before, key=lambda call: call.ended)
            assert isinstance(topic_drain.reply, Drained)
            came = {seen.place for seen in drain.reply.messages}
            for seen in topic_drain.reply.messages:
                if seen.place not in came and seen.value not in moved and not facts.is_trimmed(seen.place):
                    yield from _owed(facts, UndeliveredMessage(seen, subscription, topic_drain, drain, []))


def _owed(facts: Facts, one: UndeliveredMessage) -> Iterator[UndeliveredMessage]:
    place = one.seen.place
    start = one.subscription.start(place)
    if start is None or start.after > one.drain.began:
        return
    if one.subscription.acks.possible(place, start.began) is not None:
        return
    sends = facts.sends.get((place.topic, one.seen.value), [])
    if not start.everything and not (sends and all(call.began > start.after for call in sends)):
        return
    tried = one.subscription.acks.tried(place, start.began)
    yield UndeliveredMessage(one.seen, one.subscription, one.topic_drain, one.drain, tried)
