"""The reason and the remedy of a hanging transaction."""

from __future__ import annotations

import pytest

from txnframework.cli._transaction import explain
from txnframework.client import HangingTransaction
from txnframework.model import Participant, State, Transaction, TxnID
from txnframework.model.transactions import session_name

NOW_MS = 1_000_000
SKEW_MS = 1_000
MAINTAIN = "run 'txnframework maintain', or wait for a client that sweeps"
PLACES = frozenset({Participant("segment://a/b/c/0000-ffff-0"), Participant("segment://a/b/c/0000-ffff-0", "billing")})


@pytest.mark.parametrize(
    ("state", "left_ms", "owner_lives", "reason", "remedy"),
    [
        (State.OPEN, 5_000, True, "that began it is running", "wait 5 s for its timeout"),
        (State.OPEN, 5_000, None, "not bound to the process", "ask its owner"),
        (
            State.OPEN,
            5_000,
            False,
            "that began it has ended",
            MAINTAIN,
        ),
        (State.OPEN, -SKEW_MS, True, "that began it is running", "wait 0 ms for its timeout"),
        (
            State.OPEN,
            -SKEW_MS - 1,
            True,
            "its timeout has passed",
            MAINTAIN,
        ),
        (State.COMMITTED, 5_000, None, "2 operations have not taken effect in segment:", "transaction settle"),
        (State.ABORTED, 5_000, None, "0000-ffff-0, billing of segment:", "transaction settle"),
    ],
)
def test_reason_and_remedy(state: State, left_ms: int, owner_lives: bool | None, reason: str, remedy: str) -> None:
    """Each reason has a sentence of its own, and names the transaction in the command that helps."""
    txn = Transaction(TxnID(0, 7), state, NOW_MS + left_ms, 0, participants=PLACES)
    told = explain(HangingTransaction(txn, NOW_MS, owner_lives, 2), NOW_MS, SKEW_MS)
    assert reason in told[0]
    assert remedy in told[1]
    assert str(txn.txn_id) in told[1]


@pytest.mark.parametrize(
    ("left_ms", "owner_lives", "reason"),
    [
        (5_000, True, "open, and the process that began it (billing@web-3:4711) is running"),
        (5_000, False, "open, and the process that began it (billing@web-3:4711) has ended"),
        (
            -SKEW_MS - 1,
            True,
            "its timeout has passed, and no process has aborted it (billing@web-3:4711 began it and is running)",
        ),
        (
            -SKEW_MS - 1,
            False,
            "its timeout has passed, and no process has aborted it (billing@web-3:4711 began it and has ended)",
        ),
    ],
)
def test_the_process_is_named(left_ms: int, owner_lives: bool, reason: str) -> None:
    """The reason names the program, the host and the process id, of a process that is gone and after a timeout too."""
    session = session_name("billing@web-3:4711", 1)
    txn = Transaction(TxnID(0, 7), State.OPEN, NOW_MS + left_ms, 0, session=session)
    assert explain(HangingTransaction(txn, NOW_MS, owner_lives), NOW_MS, SKEW_MS)[0] == reason
