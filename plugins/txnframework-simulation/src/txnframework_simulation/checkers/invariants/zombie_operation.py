"""Zombie operation: an operation takes effect after the end of its transaction, or in a branch that does not count."""

from __future__ import annotations

from txnframework_simulation.checkers.acknowledgments import Ack
from txnframework_simulation.checkers.facts import Facts, send_of
from txnframework_simulation.checkers.observations import Observation
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import MessagePosition

NAME = "zombie operation"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    reported: set[MessagePosition] = set()
    for observation in facts.observations.committed:
        if observation.seen.place in reported:
            continue
        broken = _written(facts, observation)
        if broken is not None:
            reported.add(observation.seen.place)
            found.append(broken)
    for subscription in facts.subscriptions.values():
        before: set[tuple[MessagePosition, str, int]] = set()
        for ack in sorted(subscription.acks.all, key=lambda one: one.call.began):
            if ack.transaction is None or ack.derived:
                continue
            same = (ack.place, ack.transaction.txn, ack.branch)
            # A repeated acknowledgment may be confirmed at any time.
            if ack.call.ok and ack.call.began > ack.transaction.ended_at and same not in before:
                found.append(_acknowledged(ack))
            if ack.call.possible:
                before.add(same)
    return found


def _written(facts: Facts, observation: Observation) -> Violation | None:
    """Judge a message that was received as committed, by the sends that may have written it."""
    seen = observation.seen
    transaction = None if seen.txn is None else facts.transactions.get(seen.txn)
    if transaction is None:
        return None
    sends = facts.sends.get((seen.place.topic, seen.value), ())
    sends = [call for call in sends if send_of(call).txn == seen.txn]
    if not sends:
        return None
    shown = (*sends, *transaction.commits, observation.call)
    if all(call.began > transaction.ended_at for call in sends):
        sentence = (
            f"{seen.value!r} was sent in transaction {seen.txn} after it had ended, and was read from {seen.place}"
        )
        return violation(NAME, sentence, shown)
    if transaction.commits and not any(transaction.may_count(send_of(call).branch) for call in sends):
        branch = send_of(sends[0]).branch
        sentence = (
            f"{seen.value!r} was read from {seen.place}, and transaction {seen.txn} was committed without its branch"
        )
        return violation(NAME, f"{sentence} {branch}", shown)
    return None


def _acknowledged(ack: Ack) -> Violation:
    assert ack.transaction is not None
    sentence = f"{ack.place} was acknowledged in transaction {ack.transaction.txn} after it had ended"
    ends = sorted((*ack.transaction.committed, *ack.transaction.aborted), key=lambda call: call.ended)
    return violation(NAME, sentence, (*ends[:1], ack.call))
