"""Outcome flip: replies show a transaction as committed and aborted, as open after its end, or committed too early."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.violations import Violation, violation

NAME = "outcome flip"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for transaction in facts.transactions.values():
        if transaction.committed and transaction.aborted:
            sentence = f"transaction {transaction.txn} is reported as committed and as aborted"
            found.append(
                violation(NAME, sentence, (transaction.begun, transaction.committed[0], transaction.aborted[0]))
            )
        for call in transaction.told_open:
            if call.began > transaction.ended_at:
                ends = sorted((*transaction.committed, *transaction.aborted), key=lambda one: one.ended)
                sentence = f"transaction {transaction.txn} is reported as open after it had ended"
                found.append(violation(NAME, sentence, (ends[0], call)))
                break
        early = next((call for call in transaction.committed if call.ended < transaction.commit_asked_at), None)
        if early is not None:
            sentence = f"transaction {transaction.txn} is reported as committed before a commit was requested"
            found.append(violation(NAME, sentence, (transaction.begun, early, *transaction.commits[:1])))
    return found
