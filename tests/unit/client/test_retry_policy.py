"""Errors of retried operations, and the outcome that they report."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.client._base import RetryPolicy
from txnframework.config import ClientSection
from txnframework.environment import SystemEnvironment
from txnframework.errors import (
    InvalidTransactionState,
    LedgerSealed,
    NotFound,
    OutcomeUnknown,
    TransactionConflict,
    Unavailable,
)
from txnframework.model import State, TxnID

TXN = TxnID(0, 1)


def _run(*errors: Exception) -> None:
    left = list(errors)

    async def operation() -> None:
        if left:
            raise left.pop(0)

    bounds = ClientSection(retry_delay_ms=1, retry_delay_ms_max=1)
    asyncio.run(RetryPolicy(SystemEnvironment(), bounds).run(operation))


@pytest.mark.parametrize("later", [NotFound("gone"), TransactionConflict(TXN, "it has ended"), ValueError("a defect")])
def test_a_later_error_does_not_hide_an_unknown_outcome(later: Exception) -> None:
    """The caller learns that the operation may have been applied; the later error is the cause."""
    with pytest.raises(OutcomeUnknown, match="lost") as raised:
        _run(OutcomeUnknown("reply lost"), Unavailable("away"), later)
    assert raised.value.__cause__ is later
    with pytest.raises(type(later)):
        _run(Unavailable("away"), later)


@pytest.mark.parametrize("later", [InvalidTransactionState(TXN, State.COMMITTED, "it was"), LedgerSealed("segment")])
def test_an_error_that_states_the_outcome_stays(later: Exception) -> None:
    """An error with the transaction's outcome is kept, and a sealed segment is followed to its children."""
    with pytest.raises(type(later)):
        _run(OutcomeUnknown("reply lost"), later)
    _run(OutcomeUnknown("reply lost"))
