"""What is said of a transaction that hangs."""

from __future__ import annotations

import pytest

from txnframework.cli._hanging import explain
from txnframework.client import HangingTransaction
from txnframework.model import Participant, State, Transaction, TxnID

NOW_MS = 1_000_000
SKEW_MS = 1_000
PLACES = frozenset({Participant("segment://a/b/c/0000-ffff-0"), Participant("segment://a/b/c/0000-ffff-0", "billing")})


@pytest.mark.parametrize(
    ("state", "left_ms", "owner_lives", "why", "what_to_do"),
    [
        (State.OPEN, 5_000, True, "that began it is alive", "times out in 5 s"),
        (State.OPEN, 5_000, None, "does not have to be alive", "ask its owner"),
        (State.OPEN, 5_000, False, "that began it is gone", "'txnframework upkeep', or any client that sweeps"),
        (State.OPEN, -SKEW_MS, True, "that began it is alive", "times out in 0 ms"),
        (State.OPEN, -SKEW_MS - 1, True, "its timeout is over", "'txnframework upkeep', or any client that sweeps"),
        (State.COMMITTED, 5_000, None, "2 operations have not taken effect at segment:", "transaction settle"),
        (State.ABORTED, 5_000, None, "0000-ffff-0, billing of segment:", "transaction settle"),
    ],
)
def test_why_and_what_to_do(state: State, left_ms: int, owner_lives: bool | None, why: str, what_to_do: str) -> None:
    """Each reason has a sentence of its own, and names the transaction in the command that helps."""
    txn = Transaction(TxnID(0, 7), state, NOW_MS + left_ms, 0, participants=PLACES)
    told = explain(HangingTransaction(txn, NOW_MS, owner_lives, 2), NOW_MS, SKEW_MS)
    assert why in told[0]
    assert what_to_do in told[1]
    assert str(txn.txn_id) in told[1]
