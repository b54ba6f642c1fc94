"""Torn transaction: one part of a transaction took effect, and another part did not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from txnframework_simulation.checkers.facts import Facts, place_of, send_of
from txnframework_simulation.checkers.observations import Observation, ReaderView
from txnframework_simulation.checkers.subscriptions import Subscription
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, Drained, DrainTopic, MessagePosition, SeenMessage

NAME = "torn transaction"


class _Parts:
    """
    Descriptions of the parts of each transaction that took effect and of those that did not, with the calls that show
    it.
    """

    def __init__(self) -> None:
        self.done: defaultdict[str, list[tuple[str, Call, Call]]] = defaultdict(list)
        self.undone: defaultdict[str, list[tuple[str, Call, Call]]] = defaultdict(list)

    def torn(self) -> list[str]:
        return [txn for txn in self.done if txn in self.undone]


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    parts = _Parts()
    _writes(facts, parts)
    for subscription in facts.subscriptions.values():
        _acks(facts, subscription, parts)
    found = []
    for txn in parts.torn():
        transaction = facts.transactions[txn]
        (one, *shown), (other, *against) = parts.done[txn][0], parts.undone[txn][0]
        sentence = f"of transaction {txn} {one}, and {other}"
        found.append(violation(NAME, sentence, (transaction.begun, *transaction.commits, *shown, *against)))
    got = _first_of_each(facts.observations.committed)
    for view in facts.observations.views:
        if view.from_earliest:
            found += _passed_over(facts, view, got)
    return found


def _writes(facts: Facts, parts: _Parts) -> None:
    """Note for each confirmed write of a branch that counts whether it is present in the final drain."""
    present: dict[str, tuple[Call, frozenset[tuple[str, str | None]]]] = {}
    for call in facts.calls:
        if isinstance(call.operation, DrainTopic) and isinstance(call.reply, Drained):
            present[call.operation.topic] = call, frozenset((seen.value, seen.txn) for seen in call.reply.messages)
    for txn, sends in facts.writes.items():
        for call in sends:
            send, place = send_of(call), place_of(call)
            if place is None or send.topic not in present or not facts.transactions[txn].counts(send.branch):
                continue
            drain, messages = present[send.topic]
            if (send.value, txn) in messages:
                parts.done[txn].append((f"{send.value!r} at {place} is visible", call, drain))
            elif not facts.is_trimmed(place) and _only_sent_in_it(facts, call) and call.ended < drain.began:
                parts.undone[txn].append((f"{send.value!r} at {place} is not visible", call, drain))


def _only_sent_in_it(facts: Facts, call: Call) -> bool:
    """
    Whether a message was sent in only one transaction.

    A copy from another transaction could be mistaken for it.
    """
    send = send_of(call)
    return all(send_of(one).txn == send.txn for one in facts.sends[send.topic, send.value])


def _acks(facts: Facts, subscription: Subscription, parts: _Parts) -> None:
    """Note for each acknowledgment of a branch that counts whether the final drain delivers its message again."""
    for drain in subscription.drains:
        if not isinstance(drain.reply, Drained):
            continue
        left = {seen.place: seen for seen in drain.reply.messages}
        for ack in subscription.acks.all:
            transaction = ack.transaction
            if transaction is None or ack.cumulative or not ack.call.ok or not transaction.counts(ack.branch):
                continue
            if ack.call.began > drain.began:
                continue  # the drain may have received the message before
            sentence = f"the acknowledgment of {ack.place} on subscription {subscription.name}"
            if _is_left(left, ack.place, ack.incarnation):
                parts.undone[transaction.txn].append((f"{sentence} had no effect", ack.call, drain))
            elif subscription.letters:
                continue  # the message may have been moved to its dead-letter topic instead
            elif ack.place not in left and not facts.is_trimmed(ack.place):
                start = subscription.start(ack.place)
                if start is None or not start.everything or ack.call.ended < start.began:
                    continue
                if subscription.acks.only_by(transaction, ack.place, start.began):
                    parts.done[transaction.txn].append((f"{sentence} took effect", ack.call, drain))


def _is_left(left: dict[MessagePosition, SeenMessage], place: MessagePosition, incarnation: int) -> bool:
    seen = left.get(place)
    return seen is not None and seen.incarnation == incarnation


def _first_of_each(observations: Iterable[Observation]) -> dict[str, Observation]:
    """Return the first observation of each transaction of which any client received a message."""
    got: dict[str, Observation] = {}
    for observation in observations:
        if observation.seen.txn is not None:
            got.setdefault(observation.seen.txn, observation)
    return got


def _passed_over(facts: Facts, view: ReaderView, got: dict[str, Observation]) -> list[Violation]:
    """
    Find a reader that skipped a message of a transaction of which any client received another message.

    The other message may be from any topic and may be received later. Everything before a reader's last position is
    decided, and never changes.
    """
    places = {one.seen.place for one in view.observations}
    furthest = view.furthest
    found = []
    for txn, observation in got.items():
        for call in facts.writes.get(txn, ()):
            place = place_of(call)
            if place is None or place in places:
                continue
            if place.segment not in furthest or place > furthest[place.segment]:
                continue
            counts = facts.transactions[txn].counts(send_of(call).branch)
            if counts and not facts.is_trimmed(place) and _only_sent_in_it(facts, call):
                who = f"client {observation.call.client} got {observation.seen.value!r} of transaction {txn}"
                sentence = f"{who}, and {view.name} passed over {send_of(call).value!r} at {place}"
                came = next(one for one in view.observations if one.seen.place == furthest[place.segment])
                found.append(violation(NAME, sentence, (call, observation.call, came.call)))
                break
    return found
