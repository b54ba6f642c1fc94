"""
Fractured snapshot: a snapshot of several topics shows a part of a transaction, or lacks what nothing held back.
"""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts, place_of, send_of
from txnframework_simulation.checkers.transactions import NEVER
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Call, ReadSnapshot, Received

NAME = "fractured snapshot"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for call in facts.calls:
        if isinstance(call.operation, ReadSnapshot) and isinstance(call.reply, Received):
            found += _check(facts, call, frozenset(call.operation.topics), call.reply)
    return found


def _check(facts: Facts, snapshot: Call, topics: frozenset[str], reply: Received) -> list[Violation]:
    shown = {seen.place for seen in reply.messages}
    found = []
    for txn in sorted({seen.txn for seen in reply.messages if seen.txn is not None}):
        missing = next((one for one in _counting(facts, txn, topics) if place_of(one) not in shown), None)
        if missing is not None:
            one = next(seen for seen in reply.messages if seen.txn == txn)
            sentence = f"a snapshot shows {one.value!r} of transaction {txn}, and not {send_of(missing).value!r}"
            found.append(violation(NAME, sentence, (missing, snapshot)))
    held_back_from = {topic: facts.may_be_held_back_from(topic, snapshot.began) for topic in topics}
    for txn, sends in facts.writes.items():
        if not all(one.ok and one.ended < held_back_from.get(send_of(one).topic, NEVER) for one in sends):
            continue  # in one of the topics it may be behind the end
        for call in _counting(facts, txn, topics):
            if facts.readable_at(call) < snapshot.began and place_of(call) not in shown:
                sentence = f"a snapshot lacks {send_of(call).value!r} of transaction {txn}, which nothing held back"
                found.append(violation(NAME, sentence, (call, snapshot)))
                break
    return found


def _counting(facts: Facts, txn: str, topics: frozenset[str]) -> list[Call]:
    """Return the confirmed writes of a transaction to these topics that count and are still stored."""
    return [
        call
        for call in facts.writes.get(txn, ())
        if send_of(call).topic in topics
        and (place := place_of(call)) is not None
        and not facts.is_trimmed(place)
        and facts.transactions[txn].counts(send_of(call).branch)
    ]
