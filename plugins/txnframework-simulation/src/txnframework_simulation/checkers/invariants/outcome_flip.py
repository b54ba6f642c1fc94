"""Outcome flip: a transaction is told to be committed and to be aborted, or open after it ended, or ended by nobody."""

from __future__ import annotations

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.violations import Violation, violation

NAME = "outcome flip"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for fate in facts.fates.values():
        if fate.committed and fate.aborted:
            said = f"transaction {fate.txn} is told to be committed and to be aborted"
            found.append(violation(NAME, said, (fate.begun, fate.committed[0], fate.aborted[0])))
        for call in fate.told_open:
            if call.began > fate.ended_at:
                ends = sorted((*fate.committed, *fate.aborted), key=lambda one: one.ended)
                said = f"transaction {fate.txn} is told to be open after it had ended"
                found.append(violation(NAME, said, (ends[0], call)))
                break
        early = next((call for call in fate.committed if call.ended < fate.commit_asked_at), None)
        if early is not None:
            said = f"transaction {fate.txn} is told to be committed before anybody had asked for it"
            found.append(violation(NAME, said, (fate.begun, early, *fate.commits[:1])))
    return found
