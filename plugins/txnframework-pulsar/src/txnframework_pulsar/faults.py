"""Errors of the framework as the codes of the protocol, which tell a client whether to try again."""

from __future__ import annotations

from txnframework.errors import (
    BacklogQuotaExceeded,
    Closed,
    ConsumerBusy,
    InvalidInput,
    InvalidName,
    InvalidTransactionState,
    LeaseLost,
    NotFound,
    NotTransactionOwner,
    OutcomeUnknown,
    SubscriptionNotFound,
    SubscriptionOwnedElsewhere,
    TopicNotFound,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionHasFailedOperations,
    TransactionNotFound,
    Unavailable,
)
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import BadMessage
from txnframework_pulsar.wire.frames import BadChecksum


class Refused(Exception):
    """The gateway refuses a request with this code."""

    def __init__(self, code: pb.ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


# The first class that an error is an instance of decides.
_CODES: tuple[tuple[tuple[type[Exception], ...], pb.ErrorCode], ...] = (
    ((BadChecksum,), pb.CHECKSUM_ERROR),
    ((BadMessage, TransactionDomainMismatch, NotTransactionOwner), pb.NOT_ALLOWED_ERROR),
    ((TopicNotFound,), pb.TOPIC_NOT_FOUND),
    ((SubscriptionNotFound,), pb.SUBSCRIPTION_NOT_FOUND),
    ((TransactionNotFound,), pb.TRANSACTION_NOT_FOUND),
    ((TransactionConflict,), pb.TRANSACTION_CONFLICT),
    ((InvalidTransactionState, TransactionHasFailedOperations), pb.INVALID_TXN_STATUS),
    ((ConsumerBusy, SubscriptionOwnedElsewhere), pb.CONSUMER_BUSY),
    # The code of a broker's policy `producer_exception`: the client reports the error for what it wanted to send.
    ((BacklogQuotaExceeded,), pb.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION),
    ((InvalidName,), pb.INVALID_TOPIC_NAME),
    ((InvalidInput, NotFound), pb.NOT_ALLOWED_ERROR),
    ((Unavailable, OutcomeUnknown, LeaseLost, Closed), pb.SERVICE_NOT_READY),
)


def code_of(error: Exception) -> pb.ErrorCode:
    """Return the code for an error."""
    if isinstance(error, Refused):
        return error.code
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), pb.UNKNOWN_ERROR)


_ENDED = frozenset({pb.TRANSACTION_NOT_FOUND, pb.TRANSACTION_CONFLICT, pb.INVALID_TXN_STATUS})


def send_code_of(error: Exception, in_transaction: bool) -> pb.ErrorCode:
    """
    Return the code for a message that was not stored.

    Clients give up a message for this one code. For the codes of transactions they connect again, and send the message
    again permanently.
    """
    code = code_of(error)
    return pb.NOT_ALLOWED_ERROR if in_transaction and code in _ENDED else code
