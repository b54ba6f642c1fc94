from __future__ import annotations

import pytest

from txnframework.client._handlers.plan import NextStep, groups, is_temporary, next_step, order_key
from txnframework.client._messages import Message, MessageID
from txnframework.errors import (
    BacklogQuotaExceeded,
    Closed,
    InvalidInput,
    OutcomeUnknown,
    TransactionConflict,
    TransactionHasFailedOperations,
    Unavailable,
)
from txnframework.model import Position, TxnID
from txnframework.model.dispatch import Ordering

TXN = TxnID(0, 7)


def _message(entry: int, redeliveries: int = 0, key: bytes | None = None) -> Message:
    message_id = MessageID("segment://public/default/t/0000-ffff-0", Position(1, entry, 0))
    return Message("topic://public/default/t", message_id, key, b"", {}, 0, "", entry, redeliveries)


def _failed_operation(cause: Exception) -> TransactionHasFailedOperations:
    error = TransactionHasFailedOperations(TXN)
    error.__cause__ = cause
    return error


class _DriverError(Exception):
    """An error as drivers and SQLAlchemy raise it."""

    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_DriverError(sqlstate="40001"), True),
        (_DriverError(orig=_DriverError(sqlstate="40P01")), True),
        (_DriverError(sqlstate="08003"), True),
        (_DriverError(sqlstate="57P01"), True),
        (_DriverError(orig=_DriverError(sqlstate=None), connection_invalidated=True), True),
        (_DriverError(orig=_DriverError(sqlstate=None), connection_invalidated=False), False),
        (_DriverError(sqlstate="23505"), False),
        (_DriverError(sqlstate=None, orig=None), False),
        (_DriverError(sqlite_errorcode=5), True),
        (_DriverError(orig=_DriverError(sqlite_errorcode=5 | 2 << 8)), True),
        (_DriverError(sqlite_errorcode=6), True),
        (_DriverError(sqlite_errorcode=19), False),
        (_failed_operation(_DriverError(sqlstate="40001")), True),
        (Unavailable("away"), True),
        (OutcomeUnknown("lost"), True),
        (TransactionConflict(TXN, "held"), True),
        (_failed_operation(Unavailable("away")), True),
        (_failed_operation(InvalidInput("too large")), False),
        (InvalidInput("too large"), False),
        (Closed("over"), False),
        (ValueError("bad"), False),
    ],
)
def test_temporary_errors(error: Exception, expected: bool) -> None:
    """A temporary error does not concern the message; any other error may."""
    assert is_temporary(error) is expected


@pytest.mark.parametrize(
    ("error", "messages", "failures", "expected"),
    [
        (BacklogQuotaExceeded("t", "s", (1, 1), (1, -1)), 3, 1_000, NextStep.RETRY),
        (_failed_operation(BacklogQuotaExceeded("t", "s", (1, 1), (1, -1))), 1, 1_000, NextStep.RETRY),
        (Unavailable("away"), 3, 1, NextStep.RETRY),
        (Unavailable("away"), 3, 2, NextStep.RETRY),
        (Unavailable("away"), 3, 3, NextStep.SPLIT),
        (Unavailable("away"), 1, 3, NextStep.GIVE_BACK),
        (ValueError("bad"), 2, 1, NextStep.SPLIT),
        (ValueError("bad"), 1, 1, NextStep.GIVE_BACK),
    ],
)
def test_what_follows_a_failure(error: Exception, messages: int, failures: int, expected: NextStep) -> None:
    """A batch is retried as a whole, then message by message; then the failing one is redelivered."""
    assert next_step(error, messages, failures, retries_max=2) is expected


def test_redelivered_messages_are_handled_alone() -> None:
    """A redelivered message may be the cause of its batch's failure."""
    messages = [_message(1), _message(2), _message(3, 1), _message(4, 2), _message(5)]
    assert [[one.id.position.entry_id for one in some] for some in groups(messages)] == [[1, 2], [3], [4], [5]]


def test_what_must_not_be_overtaken() -> None:
    """Order is kept by segment, by key, or not at all."""
    one, other, none = _message(1, key=b"a"), _message(2, key=b"b"), _message(3)
    assert order_key(Ordering.SEGMENT, one) == order_key(Ordering.SEGMENT, none)
    assert order_key(Ordering.KEY, one) != order_key(Ordering.KEY, other)
    assert order_key(Ordering.KEY, none) is None
    assert order_key(Ordering.NONE, one) is None
