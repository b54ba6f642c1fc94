"""All that the checkers ask of a history, gathered once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from txnframework.testing.checking.sightings import Sightings, trimmed_before
from txnframework.testing.checking.subscriptions import Subscription, subscriptions
from txnframework.testing.checking.transactions import COMMITTED, NEVER, Fate, fates
from txnframework.testing.history import Call, History, Place, Send, Sent


@dataclass(slots=True)
class Facts:
    """
    What a history says.

    ``sends``: by topic and value, in the order in which they began. ``writes``: by transaction. ``trimmed``: the first
    place that is left of each segment that was trimmed.
    """

    calls: list[Call]
    fates: dict[str, Fate]
    sends: dict[tuple[str, str], list[Call]]
    writes: dict[str, list[Call]]
    sightings: Sightings
    subscriptions: dict[tuple[str, str], Subscription]
    trimmed: dict[str, Place]
    topics: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, history: History) -> Facts:
        """Gather them."""
        calls = history.calls()
        found = fates(calls)
        sends: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
        writes: defaultdict[str, list[Call]] = defaultdict(list)
        for call in calls:
            if isinstance(call.operation, Send):
                send = call.operation
                sends[send.topic, send.value].append(call)
                if send.txn is not None:
                    writes[send.txn].append(call)
                    found.setdefault(send.txn, Fate(send.txn))
        return cls(
            calls,
            found,
            dict(sends),
            dict(writes),
            Sightings.of(calls),
            subscriptions(calls, found),
            trimmed_before(calls),
            frozenset(topic for topic, _ in sends),
        )

    def committed_at(self, call: Call) -> int:
        """Return the event by which it was sure that a send counts; NEVER: that is not known."""
        send = call.operation
        if not isinstance(send, Send) or not call.ok:
            return NEVER
        if send.txn is None:
            return call.ended
        fate = self.fates[send.txn]
        if fate.state != COMMITTED or not fate.counts(send.branch):
            return NEVER
        return max(call.ended, min(one.ended for one in fate.committed))

    def is_trimmed(self, place: Place) -> bool:
        """Whether nothing that stood there can be read any more."""
        first = self.trimmed.get(place.segment)
        return first is not None and place < first


def place_of(call: Call) -> Place | None:
    """Return where a send was told to stand."""
    return call.reply.place if isinstance(call.reply, Sent) else None


def send_of(call: Call) -> Send:
    """Return what was sent."""
    assert isinstance(call.operation, Send)
    return call.operation
