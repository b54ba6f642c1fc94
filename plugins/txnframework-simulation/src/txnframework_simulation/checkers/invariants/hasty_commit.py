"""Hasty commit: the owner's commit succeeds although an earlier operation of its own branch was not done."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.transactions import TransactionFacts
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Acknowledge, Call, Commit, Send

NAME = "hasty commit"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    parts: dict[str, list[Call]] = {}
    for call in facts.asked:
        operation = call.operation
        if isinstance(operation, Send | Acknowledge) and operation.txn is not None and operation.branch == 0:
            parts.setdefault(operation.txn, []).append(call)
    found = []
    for txn, calls in parts.items():
        broken = _judge(facts.transactions.get(txn), calls)
        if broken is not None:
            found.append(broken)
    return found


def _judge(transaction: TransactionFacts | None, calls: list[Call]) -> Violation | None:
    """Judge one transaction by its first commit that succeeded; later ones repeat it. One by id waits for nothing."""
    commit = (
        min((one for one in transaction.commits if one.ok), key=lambda one: one.began, default=None)
        if transaction
        else None
    )
    if commit is None or transaction is None or (isinstance(commit.operation, Commit) and commit.operation.by_id):
        return None
    for call in calls:
        if call.began > commit.began or (call.ok and call.ended < commit.ended):
            continue
        what = "was still in flight" if call.ended > commit.ended else "had not succeeded"
        sentence = f"transaction {transaction.txn} was committed though {call.operation} {what}"
        return violation(NAME, sentence, (call, commit))
    return None
