"""Lost write: a committed message is missing at the end of the run, although no valid trim removed it."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts, place_of, send_of
from txnframework_simulation.checkers.transactions import NEVER
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, Drained, DrainTopic, MessagePosition

NAME = "lost write"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    drains = [call for call in facts.calls if isinstance(call.operation, DrainTopic) and call.ok]
    present = {
        call.began: {seen.value for seen in call.reply.messages} for call in drains if isinstance(call.reply, Drained)
    }
    by_topic: dict[str, list[Call]] = {}
    for call in drains:
        assert isinstance(call.operation, DrainTopic)
        by_topic.setdefault(call.operation.topic, []).append(call)
    for (topic, value), sends in facts.sends.items():
        for drain in by_topic.get(topic, ()):
            if value in present.get(drain.began, ()):
                continue
            sure = next((call for call in sends if facts.committed_at(call) < drain.began), None)
            if sure is None:
                continue
            broken = _judge(facts, sure, drain)
            if broken is not None:
                found.append(broken)
                break
    return found


def _judge(facts: Facts, sent: Call, drain: Call) -> Violation | None:
    send, place = send_of(sent), place_of(sent)
    assert place is not None
    transaction = None if send.txn is None else facts.transactions[send.txn]
    shown = (sent, *(() if transaction is None else transaction.committed[:1]), drain)
    if not facts.is_trimmed(place):
        what = "was sent" if send.txn is None else f"was committed with transaction {send.txn}"
        return violation(NAME, f"{send.value!r} {what} to {place}, and is missing", shown)
    holder = _still_needs(facts, send.topic, place, sent)
    if holder is None:
        return None
    sentence = f"{send.value!r} at {place} was trimmed, and was not acknowledged on subscription {holder}"
    return violation(NAME, sentence, shown)


def _still_needs(facts: Facts, topic: str, place: MessagePosition, sent: Call) -> str | None:
    """Return a subscription that must certainly still receive the message."""
    for subscription in facts.subscriptions.values():
        if subscription.topic != topic or subscription.given_up:
            continue
        start = subscription.start(place)
        if send_of(sent).value in facts.moved_from(subscription):
            continue
        if start is None or start.after > sent.began or subscription.acks.possible(place, start.began) is not None:
            continue
        if facts.committed_at(sent) < NEVER:
            return subscription.name
    return None
