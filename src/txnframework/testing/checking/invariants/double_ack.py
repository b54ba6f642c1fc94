"""Double ack: two transactions were committed that both acknowledged one message, or one that was done already."""

from __future__ import annotations

from txnframework.testing.checking.acknowledgments import Ack
from txnframework.testing.checking.facts import Facts
from txnframework.testing.checking.subscriptions import Subscription
from txnframework.testing.checking.transactions import NEVER
from txnframework.testing.checking.violations import Violation, violation

NAME = "double ack"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for subscription in facts.subscriptions.values():
        found += _by_two(subscription)
        found += _done_before(subscription)
    return found


def _by_two(subscription: Subscription) -> list[Violation]:
    found = []
    for place, acks in subscription.acks.singles.items():
        first: dict[int, Ack] = {}
        for ack in acks:
            if ack.fate is None or ack.effective_at == NEVER:
                continue
            before = first.setdefault(ack.incarnation, ack)
            if before.fate is not ack.fate and before.fate is not None:
                said = f"{place} was acknowledged on subscription {subscription.name} by two committed transactions"
                calls = (before.call, ack.call, *before.fate.committed[:1], *ack.fate.committed[:1])
                found.append(violation(NAME, f"{said}, {before.fate.txn} and {ack.fate.txn}", calls))
                break
    return found


def _done_before(subscription: Subscription) -> list[Violation]:
    """A transaction cannot acknowledge what was surely done before it tried."""
    found = []
    for ack in subscription.acks.all:
        if ack.fate is None or ack.derived or ack.effective_at == NEVER:
            continue
        before = subscription.acks.effective(ack.place, ack.incarnation)
        if before is None or before.fate is ack.fate or before.effective_at > ack.call.began:
            continue
        if before.fate is not None and not (before.cumulative or ack.cumulative):
            continue  # two transactions, which the other rule tells of
        said = f"{ack.place} was done on subscription {subscription.name} before transaction {ack.fate.txn}"
        calls = (before.call, ack.call, *ack.fate.committed[:1])
        found.append(violation(NAME, f"{said} acknowledged it and was committed", calls))
    return found
