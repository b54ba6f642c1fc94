"""Outcome flip: a transaction is told to be committed and to be aborted, or open after it ended, or ended by nobody."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.violations import Violation, violation

NAME = "outcome flip"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for transaction in facts.transactions.values():
        if transaction.committed and transaction.aborted:
            sentence = f"transaction {transaction.txn} is told to be committed and to be aborted"
            found.append(
                violation(NAME, sentence, (transaction.begun, transaction.committed[0], transaction.aborted[0]))
            )
        for call in transaction.told_open:
            if call.began > transaction.ended_at:
                ends = sorted((*transaction.committed, *transaction.aborted), key=lambda one: one.ended)
                sentence = f"transaction {transaction.txn} is told to be open after it had ended"
                found.append(violation(NAME, sentence, (ends[0], call)))
                break
        early = next((call for call in transaction.committed if call.ended < transaction.commit_asked_at), None)
        if early is not None:
            sentence = f"transaction {transaction.txn} is told to be committed before anybody had asked for it"
            found.append(violation(NAME, sentence, (transaction.begun, early, *transaction.commits[:1])))
    return found
