"""The facts of a history that the checkers use, gathered once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from txnframework.model.positions import ASIDE
from txnframework_simulation.checkers.observations import Observations, trimmed_before
from txnframework_simulation.checkers.subscriptions import Subscription, collect_subscriptions
from txnframework_simulation.checkers.topic_lifetimes import deleted_topics, without_deleted_topics
from txnframework_simulation.checkers.transactions import COMMITTED, NEVER, TransactionFacts, collect_transactions
from txnframework_simulation.checkers.unnamed_transactions import with_ids
from txnframework_simulation.history import Call, History, MessagePosition, SeenMessage, Send, Sent

CLOCK_SKEW_MS = "clock_skew_ms"
"""
The key in a history's ``about`` for the maximum difference between clocks.

Without it, clocks may differ by any amount.
"""
SKEW_UNKNOWN_NS = 1 << 60


@dataclass(slots=True)
class Facts:
    """
    The facts of a history.

    ``sends``: by topic and value, in the order in which they began. ``writes``: by transaction. ``trimmed``: the first
    remaining position of each trimmed segment. ``aside``: the starts of sends whose reply has no position in the
    segment, because a transaction's messages get their positions at the commit. Here these sends have the observed
    position. ``letters``: by dead-letter topic, its subscriptions. For topics in ``deleted``, the facts are about the
    last topic of the name, as far as that is certain. ``asked`` are all calls of the history, including calls about
    earlier topics. ``times_ns``: the time of each event. ``clock_skew_ns``: the maximum difference between clocks of
    two processes.
    """

    calls: list[Call]
    transactions: dict[str, TransactionFacts]
    sends: dict[tuple[str, str], list[Call]]
    writes: dict[str, list[Call]]
    observations: Observations
    subscriptions: dict[tuple[str, str], Subscription]
    trimmed: dict[str, MessagePosition]
    topics: frozenset[str] = field(default_factory=frozenset)
    aside: frozenset[int] = frozenset()
    asked: list[Call] = field(default_factory=list)
    letters: dict[str, list[Subscription]] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    times_ns: list[int] = field(default_factory=list)
    clock_skew_ns: int = SKEW_UNKNOWN_NS

    @classmethod
    def of(cls, history: History) -> Facts:
        """Compute the facts of a history."""
        asked = with_ids(history.calls())
        calls, aside = with_places(without_deleted_topics(asked))
        found = collect_transactions(calls)
        sends: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
        writes: defaultdict[str, list[Call]] = defaultdict(list)
        for call in calls:
            if isinstance(call.operation, Send):
                send = call.operation
                sends[send.topic, send.value].append(call)
                if send.txn is not None:
                    writes[send.txn].append(call)
                    found.setdefault(send.txn, TransactionFacts(send.txn))
        known = collect_subscriptions(calls, found)
        letters: defaultdict[str, list[Subscription]] = defaultdict(list)
        for subscription in known.values():
            for topic in subscription.letters:
                letters[topic].append(subscription)
        return cls(
            calls,
            found,
            dict(sends),
            dict(writes),
            Observations.of(calls),
            known,
            trimmed_before(calls),
            frozenset(topic for topic, _ in sends),
            aside,
            asked,
            dict(letters),
            deleted_topics(asked),
            [*(event.at_ns for event in history.events), NEVER],
            _clock_skew_ns(history),
        )

    def is_letter(self, seen: SeenMessage) -> bool:
        """Whether a message may be a dead letter: no client sent it to its topic."""
        return seen.place.topic in self.letters and (seen.place.topic, seen.value) not in self.sends

    def moved_from(self, subscription: Subscription) -> set[str]:
        """Return the values of a subscription's messages that were observed in its dead-letter topics."""
        if not subscription.letters:
            return set()
        return {
            one.seen.value
            for one in (*self.observations.committed, *self.observations.others)
            if one.seen.place.topic in subscription.letters and self.is_letter(one.seen)
        }

    def committed_at(self, call: Call) -> int:
        """
        Return the event by which a send certainly counted.

        NEVER: no such event is known.
        """
        send = call.operation
        if not isinstance(send, Send) or not call.ok:
            return NEVER
        if send.txn is None:
            return call.ended
        transaction = self.transactions[send.txn]
        if transaction.state != COMMITTED or not transaction.counts(send.branch):
            return NEVER
        return max(call.ended, min(one.ended for one in transaction.committed))

    def readable_at(self, call: Call) -> int:
        """Return the event by which a send certainly counted and its transaction, if any, was completely settled."""
        send = call.operation
        if not isinstance(send, Send) or send.txn is None or self.committed_at(call) == NEVER:
            return self.committed_at(call)
        return max(call.ended, self.transactions[send.txn].over_at)

    def may_be_held_back_from(self, topic: str, at: int) -> int:
        """
        Return an event: messages that were confirmed in the topic after it may not be readable at ``at``.

        An open transaction holds back messages after the end of the topic. It is the end at the start of the
        transaction's first send to the topic, or later. Messages confirmed before that are not held back.
        """
        may_be_open = (
            call.began
            for txn, sends in self.writes.items()
            if self.transactions[txn].over_at > at
            for call in sends
            if send_of(call).topic == topic
        )
        return min(may_be_open, default=NEVER)

    def is_trimmed(self, place: MessagePosition) -> bool:
        """Whether the message at this position was trimmed."""
        first = self.trimmed.get(place.segment)
        return first is not None and (place < first or is_aside(place))


def _clock_skew_ns(history: History) -> int:
    skew_ms = history.about.get(CLOCK_SKEW_MS)
    return SKEW_UNKNOWN_NS if skew_ms is None else int(skew_ms) * 1_000_000


def is_aside(place: MessagePosition) -> bool:
    """Whether this is the provisional place that a message has until its transaction is committed."""
    return place.ledger_id >= ASIDE


def with_places(calls: list[Call]) -> tuple[list[Call], frozenset[int]]:
    """
    Replace provisional positions in replies to sends by the observed positions, and return the starts of those sends.
    """
    aside = frozenset(call.began for call in calls if (place := place_of(call)) is not None and is_aside(place))
    if not aside:
        return calls, aside
    seen: dict[tuple[str, str, str | None], MessagePosition] = {}
    for one in Observations.of(calls).committed:
        seen.setdefault((one.seen.place.topic, one.seen.value, one.seen.txn), one.seen.place)
    placed: list[Call] = []
    for call in calls:
        if call.began in aside:
            send = send_of(call)
            found = seen.get((send.topic, send.value, send.txn))
            call = call if found is None else replace(call, reply=Sent(found))
        placed.append(call)
    return placed, aside


def place_of(call: Call) -> MessagePosition | None:
    """Return the position in the reply to a send."""
    return call.reply.place if isinstance(call.reply, Sent) else None


def send_of(call: Call) -> Send:
    """Return the operation of a call that is a send."""
    assert isinstance(call.operation, Send)
    return call.operation
