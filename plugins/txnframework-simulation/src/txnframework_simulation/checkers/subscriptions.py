"""What a history shows about each subscription: its start, its consumers and its acknowledgments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from txnframework.model.names import topic_of
from txnframework_simulation.checkers.acknowledgments import Ack, SubscriptionAcks
from txnframework_simulation.checkers.observations import EARLIEST, Observation
from txnframework_simulation.checkers.segments import descends
from txnframework_simulation.checkers.transactions import TransactionFacts
from txnframework_simulation.history import (
    Acknowledge,
    AskAck,
    Call,
    Consume,
    DrainSubscription,
    MessagePosition,
    Receive,
    Received,
    Redeliver,
    Seek,
    Subscribe,
    Unsubscribe,
)

ORDERED_TYPES = frozenset({"exclusive", "failover"})
KEYED_TYPES = frozenset({"key_shared"})


@dataclass(frozen=True, slots=True)
class Start:
    """
    A certain start of a subscription: ``everything`` was still to be delivered, or only messages sent ``after`` an
    event.
    """

    began: int
    after: int
    everything: bool


@dataclass(slots=True)
class Subscription:
    """One subscription of one topic."""

    topic: str
    name: str
    made: list[Call] = field(default_factory=list)
    given_up: list[Call] = field(default_factory=list)
    seeks: list[Call] = field(default_factory=list)
    consumers: dict[str, Call] = field(default_factory=dict)
    deliveries: list[Observation] = field(default_factory=list)
    drains: list[Call] = field(default_factory=list)
    asked: list[Call] = field(default_factory=list)
    asked_again: dict[str, list[Call]] = field(default_factory=dict)
    """By consumer: its requests for the redelivery of all unacknowledged messages."""
    acks: SubscriptionAcks = field(default_factory=SubscriptionAcks)
    letters: set[str] = field(default_factory=set)
    """The topics to which consumers move its dead letters."""

    @property
    def moved(self) -> bool:
        """Whether the subscription was moved by a seek or deleted, so that it may have started again."""
        return bool(self.seeks or self.given_up)

    @property
    def type(self) -> str | None:
        """
        The type of all consumers.

        None: there is no consumer, or the types differ.
        """
        types = {call.operation.type for call in self.consumers.values() if isinstance(call.operation, Consume)}
        return types.pop() if len(types) == 1 else None

    def start(self, place: MessagePosition) -> Start | None:
        """Return the last certain start of the subscription for a message at ``place``, or None."""
        possible = [call for call in self.seeks if call.possible]
        for number, seek in sorted(enumerate(possible), key=lambda one: -one[1].ended):
            others = (call for other, call in enumerate(possible) if other != number and call.began < seek.ended)
            if not seek.ok or any(call.ended > seek.began for call in others):
                return None
            later = [call for call in self.given_up if call.possible and call.ended > seek.began]
            if later:
                # The subscription was deleted after the seek: if that is certain, the seek has no effect any more.
                gone = any(call.ok and call.began > seek.ended for call in later)
                return self._made() if gone else None
            found = _sought(seek, place)
            if found is not None:
                return found
        return self._made()

    def _made(self) -> Start | None:
        gone = [call for call in self.given_up if call.possible]
        surely = [call for call in gone if call.ok]
        since = max((call.began for call in surely), default=-1)
        last = [call for call in gone if call.ended > since]
        # The subscription was created while a deletion ran: the order is unknown.
        if any(call.began < end.ended and end.began < call.ended for call in self.made for end in last):
            return None
        given_up = max((call.ended for call in surely), default=-1)
        possible = [call for call in self.made if call.possible and call.began > given_up]
        # The deletion may have failed: the subscription is the earlier one, or one that was created since.
        doubtful = max((call.ended for call in last if not call.ok), default=given_up)
        sure = min(
            (call for call in possible if call.ok and call.began > doubtful), key=lambda call: call.ended, default=None
        )
        if sure is None:
            return None
        everything = all(_starts_earliest(call) for call in possible if call.began < sure.ended)
        return Start(min(call.began for call in possible), sure.ended, everything)


def _starts_earliest(call: Call) -> bool:
    return isinstance(call.operation, Consume | Subscribe) and call.operation.start == EARLIEST


def _sought(seek: Call, place: MessagePosition) -> Start | None:
    """
    Return the start that a seek gave to the segment of a message.

    None: the seek did not move that segment.
    """
    to = seek.operation
    assert isinstance(to, Seek)
    if to.place is None:
        return Start(seek.began, seek.ended, to.to == EARLIEST)
    if descends(place.segment, to.place.segment):
        return Start(seek.began, seek.ended, True)
    if place.segment != to.place.segment:
        return None
    return Start(seek.began, seek.ended, place >= to.place)


def collect_subscriptions(
    calls: Iterable[Call], transactions: dict[str, TransactionFacts]
) -> dict[tuple[str, str], Subscription]:
    """Return all subscriptions by topic and name."""
    found: dict[tuple[str, str], Subscription] = {}
    acks: defaultdict[tuple[str, str], list[Ack]] = defaultdict(list)

    def of(topic: str, name: str) -> Subscription:
        one = found.get((topic, name))
        if one is None:
            one = found[topic, name] = Subscription(topic, name)
        return one

    last_seen = _LastSeen()
    for call in sorted(calls, key=lambda one: one.ended):
        match call.operation:
            case Subscribe(topic=topic, subscription=name):
                of(topic, name).made.append(call)
            case Consume(topics=topics, subscription=name, consumer=consumer, dead_letters=letters):
                for topic in dict.fromkeys(str(topic_of(one)) for one in topics):
                    of(topic, name).made.append(call)
                    of(topic, name).consumers[consumer] = call
                    if letters is not None:
                        of(topic, name).letters.add(letters)
            case Unsubscribe(topic=topic, subscription=name):
                of(topic, name).given_up.append(call)
            case Seek(topic=topic, subscription=name):
                of(topic, name).seeks.append(call)
            case AskAck(subscription=name, place=place):
                of(place.topic, name).asked.append(call)
            case DrainSubscription(topic=topic, subscription=name):
                of(topic, name).drains.append(call)
            case Receive(subscription=name, consumer=consumer) if isinstance(call.reply, Received):
                for seen in call.reply.messages:
                    of(seen.place.topic, name).deliveries.append(Observation(seen, call))
                    last_seen.note(consumer, seen.place, seen.incarnation)
            case Redeliver(consumer=consumer):
                for one in found.values():
                    if consumer in one.consumers:
                        one.asked_again.setdefault(consumer, []).append(call)
            case Acknowledge(subscription=name) as asked:
                for ack in _acks(call, asked, transactions, last_seen):
                    of(ack.place.topic, name)
                    acks[ack.place.topic, name].append(ack)
    for key, some in acks.items():
        found[key].acks = SubscriptionAcks.of(some, bool(found[key].letters))
    return found


class _LastSeen:
    """The last message that each consumer received from each segment."""

    def __init__(self) -> None:
        self._places: defaultdict[str, dict[str, tuple[MessagePosition, int]]] = defaultdict(dict)

    def note(self, consumer: str, place: MessagePosition, incarnation: int) -> None:
        self._places[consumer][place.segment] = (place, incarnation)

    def before(self, consumer: str, segment: str) -> list[tuple[MessagePosition, int]]:
        """Return the last message from each ancestor of a segment."""
        return [one for name, one in self._places[consumer].items() if descends(segment, name)]


def _acks(call: Call, asked: Acknowledge, transactions: dict[str, TransactionFacts], last_seen: _LastSeen) -> list[Ack]:
    transaction = None if asked.txn is None else transactions.setdefault(asked.txn, TransactionFacts(asked.txn))
    before = last_seen.before(asked.consumer, asked.messages[0].place.segment) if asked.cumulative else []
    several = len({one.place.segment for one in asked.messages}) > 1 or bool(before)
    common = (asked.consumer, call, transaction, asked.branch, several)
    found = [Ack(one.place, one.incarnation, asked.cumulative, *common) for one in asked.messages]
    return found + [Ack(place, incarnation, True, *common, derived=True) for place, incarnation in before]
