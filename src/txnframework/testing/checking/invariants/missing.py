"""What a subscription still owed in the end and did not deliver: an ack leaked, or a reader is stuck."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from txnframework.testing.checking.acknowledgments import Ack
from txnframework.testing.checking.facts import Facts
from txnframework.testing.checking.subscriptions import Subscription
from txnframework.testing.history import Call, Drained, DrainTopic, Seen


@dataclass(frozen=True, slots=True)
class Missing:
    """A committed message that a drain did not bring; ``tried``: acknowledgments of it, none of which counts."""

    seen: Seen
    subscription: Subscription
    topic_drain: Call
    drain: Call
    tried: list[Ack]


def missing(facts: Facts) -> Iterator[Missing]:
    """Return what should have come for certain."""
    topics = {
        call.operation.topic: call
        for call in facts.calls
        if isinstance(call.operation, DrainTopic) and isinstance(call.reply, Drained)
    }
    for subscription in facts.subscriptions.values():
        topic_drain = topics.get(subscription.topic)
        if topic_drain is None or not isinstance(topic_drain.reply, Drained):
            continue
        for drain in subscription.drains:
            if isinstance(drain.reply, Drained):
                came = {seen.place for seen in drain.reply.messages}
                for seen in topic_drain.reply.messages:
                    if seen.place not in came and not facts.is_trimmed(seen.place):
                        yield from _owed(facts, Missing(seen, subscription, topic_drain, drain, []))


def _owed(facts: Facts, one: Missing) -> Iterator[Missing]:
    place = one.seen.place
    start = one.subscription.start(place)
    if start is None or one.subscription.acks.possible(place, start.began) is not None:
        return
    sends = facts.sends.get((place.topic, one.seen.value), [])
    if not start.everything and not (sends and all(call.began > start.after for call in sends)):
        return
    tried = one.subscription.acks.tried(place, start.began)
    yield Missing(one.seen, one.subscription, one.topic_drain, one.drain, tried)
