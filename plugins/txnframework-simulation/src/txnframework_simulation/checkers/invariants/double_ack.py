"""Double ack: two committed transactions acknowledged one message, or one that was already acknowledged."""

from __future__ import annotations

from txnframework_simulation.checkers.acknowledgments import Ack
from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.observations import Observation
from txnframework_simulation.checkers.subscriptions import Subscription
from txnframework_simulation.checkers.transactions import NEVER
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, MessagePosition, Receive

NAME = "double ack"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for subscription in facts.subscriptions.values():
        found += _by_two(subscription)
        found += _in_a_range(subscription)
        found += _done_before(subscription)
    return found


def _by_two(subscription: Subscription) -> list[Violation]:
    """Find messages that two committed transactions acknowledged by name: alone, or as the end of a range."""
    found = []
    named: dict[MessagePosition, list[Ack]] = {place: list(acks) for place, acks in subscription.acks.singles.items()}
    for ack in subscription.acks.all:
        if ack.cumulative and not ack.derived:
            named.setdefault(ack.place, []).append(ack)
    for place, acks in named.items():
        first: dict[int, Ack] = {}
        for ack in acks:
            if ack.transaction is None or ack.effective_at == NEVER:
                continue
            before = first.setdefault(ack.incarnation, ack)
            if before.transaction is not ack.transaction and before.transaction is not None:
                sentence = f"{place} was acknowledged on subscription {subscription.name} by two committed transactions"
                calls = (before.call, ack.call, *before.transaction.committed[:1], *ack.transaction.committed[:1])
                found.append(violation(NAME, f"{sentence}, {before.transaction.txn} and {ack.transaction.txn}", calls))
                break
    return found


def _in_a_range(subscription: Subscription) -> list[Violation]:
    """
    A transaction does not acknowledge, in a range, a message that its consumer received and another consumer then
    finished.

    Messages that the consumer itself has finished, in any transaction, may be in the range, because it knows about
    them. So may messages that it asked for again, unless the range ends at a message that it received before it asked.
    """
    ranges = [ack for ack in subscription.acks.all if ack.cumulative and ack.transaction and ack.effective_at < NEVER]
    if not ranges:
        return []
    given = _Given(subscription)
    found = []
    for ack in ranges:
        for observation in given.within(ack):
            place = observation.seen.place
            if _finished_itself(subscription, place, ack):
                continue
            other = _finished_elsewhere(subscription, given, place, ack, observation.at)
            if other is not None:
                assert ack.transaction is not None
                sentence = f"{place} was given to consumer {ack.consumer} of subscription {subscription.name}, then"
                sentence += f" finished by consumer {other.consumer}, and transaction {ack.transaction.txn}"
                calls = (observation.call, other.call, *_ends(other), ack.call, *_ends(ack))
                found.append(
                    violation(
                        NAME, f"{sentence} acknowledged it in a range, up to {ack.place}, and was committed", calls
                    )
                )
                break
    return found


class _Given:
    """The messages that each consumer received from each segment under each incarnation."""

    def __init__(self, subscription: Subscription) -> None:
        self._asked_again = subscription.asked_again
        self._sightings: dict[tuple[str, str, int], list[Observation]] = {}
        for observation in subscription.deliveries:
            receive, seen = observation.call.operation, observation.seen
            assert isinstance(receive, Receive)
            key = receive.consumer, seen.place.segment, seen.incarnation
            self._sightings.setdefault(key, []).append(observation)

    def within(self, ack: Ack) -> list[Observation]:
        """
        Return the messages of a range that its consumer received before it acknowledged the range.

        The consumer may have asked for everything again. Messages that it received before that count only if it did not
        receive the last message of the range again since. In that case it still refers to the earlier deliveries.
        """
        came = self._sightings.get((ack.consumer, ack.place.segment, ack.incarnation), ())
        within = [one for one in came if one.seen.place <= ack.place and one.at < ack.call.began]
        named = max((one.at for one in within if one.seen.place == ack.place), default=-1)
        again = (call.ended for call in self._asked_again.get(ack.consumer, ()) if call.began < named)
        since = max(again, default=-1)
        return [one for one in within if one.at > since]


def _finished_itself(subscription: Subscription, place: MessagePosition, ack: Ack) -> bool:
    """
    Return whether the consumer of a range had acknowledged a message of it itself, in an earlier call that succeeded.

    The range does not represent such a message, even if a transaction that held the message overruled that call.
    """
    return any(
        own.consumer == ack.consumer and own.incarnation == ack.incarnation and own.effective_at <= ack.call.began
        for own in subscription.acks.singles.get(place, ())
    )


def _finished_elsewhere(
    subscription: Subscription,
    given: _Given,
    place: MessagePosition,
    ack: Ack,
    since: int,
) -> Ack | None:
    """
    Return an ack by another consumer that also received the message and finished it, in a call that began after an
    event.
    """
    for other in subscription.acks.all:
        if other.consumer == ack.consumer or other.incarnation != ack.incarnation or other.call.began < since:
            continue
        if other.place.segment != place.segment or other.transaction is ack.transaction or other.effective_at == NEVER:
            continue
        if other.transaction is None and (
            other.effective_at > ack.call.began or subscription.acks.is_overruled(other, place)
        ):
            continue
        if other.place == place:
            return other
        reaches = other.cumulative and other.place > place
        if reaches and any(one.seen.place == place for one in given.within(other)):
            return other
    return None


def _ends(ack: Ack) -> tuple[Call, ...]:
    return () if ack.transaction is None else tuple(ack.transaction.committed[:1])


def _done_before(subscription: Subscription) -> list[Violation]:
    """A transaction cannot acknowledge a message whose acknowledgment certainly took effect before."""
    found = []
    for ack in subscription.acks.all:
        if ack.transaction is None or ack.derived or ack.effective_at == NEVER:
            continue
        before = subscription.acks.effective(ack.place, ack.incarnation)
        if before is None or before.transaction is ack.transaction or before.effective_at > ack.call.began:
            continue
        if before.transaction is not None and before.place == ack.place:
            continue  # acknowledged by two transactions: the first check reports it
        sentence = (
            f"{ack.place} was finished on subscription {subscription.name} before transaction {ack.transaction.txn}"
        )
        calls = (before.call, ack.call, *ack.transaction.committed[:1])
        found.append(violation(NAME, f"{sentence} acknowledged it and was committed", calls))
    return found
