"""The outcomes of transactions that a host remembers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from txnframework.broker.coordinators.own_transactions import KnownOutcomes
from txnframework.errors import TransactionNotFound
from txnframework.model import Branch, TxnID
from txnframework.model.transactions import State, Transaction


class Coordinator:
    """Reports the outcomes of the transactions that it knows."""

    def __init__(self, *known: Transaction) -> None:
        self._known = {one.txn_id: one for one in known}

    async def describe(self, txn_id: TxnID) -> Transaction:
        if txn_id not in self._known:
            raise TransactionNotFound(txn_id)
        return self._known[txn_id]


def _transaction(number: int, state: State, *branches: int) -> Transaction:
    return Transaction(TxnID(0, number), state, deadline_ms=1, created_ms=0, branches=frozenset(branches))


@pytest.mark.parametrize(
    ("branch", "counts"),
    [
        (Branch(TxnID(0, 1)), True),
        (Branch(TxnID(0, 1), 5), True),
        (Branch(TxnID(0, 1), 6), False),
        (Branch(TxnID(0, 2)), False),
        (Branch(TxnID(0, 3)), None),
        (Branch(TxnID(0, 4)), None),
        (Branch(TxnID(0, 5)), False),
    ],
)
def test_asking(branch: Branch, counts: bool | None) -> None:
    """Only ended transactions are remembered; unlisted branches and unknown transactions count as aborted."""
    coordinator: Any = Coordinator(
        _transaction(1, State.COMMITTED, 0, 5),
        _transaction(2, State.ABORTED),
        _transaction(3, State.OPEN),
        _transaction(4, State.COMMITTING, 0),
    )
    outcomes = KnownOutcomes(10)
    asyncio.run(outcomes.load(coordinator, branch))
    assert outcomes.counts(branch) is counts


def test_the_oldest_is_forgotten() -> None:
    """The number of remembered outcomes is limited."""
    outcomes = KnownOutcomes(2)
    for number in range(3):
        outcomes.note(Branch(TxnID(0, number)), counts=True)
    assert [outcomes.counts(Branch(TxnID(0, number))) for number in range(3)] == [None, True, True]
