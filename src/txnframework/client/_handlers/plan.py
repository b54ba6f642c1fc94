"""The decisions of a handler loop: what follows a failure, what is handled together, and what waits for what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txnframework.client._messages import Message
from txnframework.client._subscription.inbox import OrderKey
from txnframework.errors import (
    BacklogQuotaExceeded,
    InvalidTransactionState,
    OutcomeUnknown,
    TransactionConflict,
    TransactionHasFailedOperations,
    TransactionNotFound,
    Unavailable,
    VersionMismatch,
)
from txnframework.model.dispatch import Ordering

TEMPORARY = (
    InvalidTransactionState,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
    Unavailable,
    VersionMismatch,
)
"""Errors that say nothing about the messages: the same work may succeed in another transaction."""
TEMPORARY_CLASSES = ("08", "40", "57")
"""The classes of SQLSTATE for a lost connection, a rollback because of others, and a server that is being stopped."""

LOCKED_IN_A_FILE = (5, 6)
"""The error codes of SQLite for a lock that another connection holds: SQLITE_BUSY and SQLITE_LOCKED."""


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """
    The bounds of a handler loop.

    * ``concurrency``: how many batches are handled at a time. ``messages_max``: the size of a batch.
    * ``retries_max``: how often the same messages are tried again after a temporary error.
    * ``delay_ms_max``: the longest delay before a message is redelivered.
    * ``drain_timeout_ms``: how long handlers may go on after the loop was stopped.
    """

    concurrency: int
    messages_max: int
    retries_max: int
    delay_ms_max: int
    drain_timeout_ms: int


class Hindrance(Exception):
    """
    Messages were not handled for a reason that they have nothing to do with, such as a database that is away.

    The handler did not begin, or has done its work. The cause is the reason.
    """


class NextStep(Enum):
    """What follows a failed attempt."""

    RETRY = "another attempt follows"
    """The same messages are tried again, in another transaction."""
    SPLIT = "each of them follows alone"
    """Each of the messages is tried alone, so that only the one that fails is redelivered."""
    GIVE_BACK = "a redelivery follows"
    """The message is redelivered, and this delivery counts."""


def next_step(error: BaseException, messages: int, failures: int, retries_max: int) -> NextStep:
    """
    Return what follows after ``failures`` failed attempts at these messages, of which the last raised ``error``.

    While something hinders every message, they wait. Redeliveries would make them dead letters, although nothing is
    wrong with them.
    """
    if is_hindered(error) or (failures <= retries_max and is_temporary(error)):
        return NextStep.RETRY
    return NextStep.SPLIT if messages > 1 else NextStep.GIVE_BACK


def is_hindered(error: BaseException | None) -> bool:
    """Return whether messages wait for something else: a hindrance, or room in a topic that a quota limits."""
    if isinstance(error, TransactionHasFailedOperations):
        error = error.__cause__
    return isinstance(error, Hindrance | BacklogQuotaExceeded)


def is_temporary(error: BaseException | None) -> bool:
    """
    Return whether another attempt may succeed; a commit that failed is judged by the operation that failed first.

    An error of the application's database is temporary if the connection was lost, or if the database rolled the
    transaction back because of others.
    """
    if isinstance(error, TransactionHasFailedOperations):
        return is_temporary(error.__cause__)
    return isinstance(error, TEMPORARY) or _is_of_the_database(error)


def _is_of_the_database(error: BaseException | None) -> bool:
    """
    Return whether an error of a database driver says nothing about the statement, as after a deadlock.

    Drivers keep the SQLSTATE in ``sqlstate``, and that of SQLite has ``sqlite_errorcode``, whose low byte is the kind.
    A library may wrap the driver's error as ``orig``, and note in ``connection_invalidated`` that the connection was
    lost.
    """
    while error is not None:
        state = getattr(error, "sqlstate", None)
        if isinstance(state, str) and state.startswith(TEMPORARY_CLASSES):
            return True
        code = getattr(error, "sqlite_errorcode", None)
        if isinstance(code, int) and code & 0xFF in LOCKED_IN_A_FILE:
            return True
        if getattr(error, "connection_invalidated", False) is True:
            return True
        error = getattr(error, "orig", None) or error.__cause__
    return False


def groups(messages: Iterable[Message[Any]]) -> list[tuple[Message[Any], ...]]:
    """Return consecutive messages that are handled together; one that was delivered before is handled alone."""
    found: list[list[Message[Any]]] = []
    for message in messages:
        if found and not message.redelivery_count and not found[-1][0].redelivery_count:
            found[-1].append(message)
        else:
            found.append([message])
    return [tuple(some) for some in found]


def order_key(ordering: Ordering, message: Message[Any]) -> OrderKey | None:
    """Return the messages that must not overtake a message, and that it must not overtake; None: there are none."""
    if ordering is Ordering.SEGMENT:
        return OrderKey(message.id.segment, None)
    if ordering is Ordering.KEY and message.key is not None:
        return OrderKey(message.id.segment, message.key)
    return None
