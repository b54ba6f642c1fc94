"""Aborted read (G1a): a client read a message as committed that was aborted, refused, or not yet committed."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.observations import Observation
from txnframework_simulation.checkers.transactions import ABORTED
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, MessagePosition

NAME = "aborted read"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    reported: set[MessagePosition] = set()
    for observation in facts.observations.committed:
        if observation.seen.place in reported or observation.seen.place.topic not in facts.topics:
            continue
        if facts.is_letter(observation.seen):
            continue  # the rule about dead letters reports it
        broken = _judge(facts, observation)
        if broken is not None:
            reported.add(observation.seen.place)
            found.append(broken)
    return found


def _judge(facts: Facts, observation: Observation) -> Violation | None:
    seen = observation.seen
    came = f"{seen.value!r} was read from {seen.place}"
    sends = facts.sends.get((seen.place.topic, seen.value), [])
    shown: tuple[Call | None, ...] = (*sends, observation.call)
    if seen.txn is not None:
        transaction = facts.transactions.get(seen.txn)
        if transaction is None:
            return violation(NAME, f"{came} as part of transaction {seen.txn}, which never began", shown)
        shown = (transaction.begun, *sends, *transaction.commits, *transaction.aborted[:1], observation.call)
        if transaction.state == ABORTED:
            return violation(NAME, f"{came}, and its transaction {seen.txn} was aborted", shown)
        if transaction.commit_asked_at > observation.at:
            sentence = f"{came} before a commit was requested for its transaction {seen.txn}"
            return violation(NAME, sentence, shown)
        if not transaction.may_be_committed:
            return violation(NAME, f"{came}, and committing its transaction {seen.txn} had failed", shown)
        return None
    if all(call.began > observation.at for call in sends):
        return violation(NAME, f"{came}, and was not sent before", shown)
    if not any(call.possible for call in sends):
        return violation(NAME, f"{came}, and sending it had failed", shown)
    return None
