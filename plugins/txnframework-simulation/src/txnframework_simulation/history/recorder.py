"""Recording of the operations of clients and of the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from txnframework.errors import (
    Conflict,
    InvalidInput,
    InvalidTransactionState,
    NotFound,
    TransactionHasFailedOperations,
    Unavailable,
)
from txnframework.errors import EndTransactionTimeout as DecidedButLate
from txnframework_simulation.history.events import Event, EventKind
from txnframework_simulation.history.operations import Operation
from txnframework_simulation.history.replies import Done, Outcome, Reply

T = TypeVar("T")

_NOTHING_CHANGED = (InvalidInput, Conflict, NotFound, Unavailable)
"""Errors after which the operation has certainly not happened."""


class PendingCall:
    """A call that has not ended; exactly one of its methods is called, once."""

    def __init__(self, tell: Callable[[EventKind, Reply | None, str], None]) -> None:
        self._tell = tell

    def ok(self, reply: Reply | None = None) -> None:
        """Record that the operation happened."""
        self._tell(EventKind.OK, reply or Done(), "")

    def fail(self, error: str, outcome: Outcome | None = None) -> None:
        """Record that the operation did not happen, and will not happen later."""
        self._tell(EventKind.FAIL, outcome, error)

    def unknown(self, error: str) -> None:
        """Record that the operation may have happened, or may happen later."""
        self._tell(EventKind.UNKNOWN, None, error)

    def raised(self, error: BaseException) -> None:
        """Record that the call raised this exception, which may show the outcome."""
        kind, outcome = classify_error(error)
        self._tell(kind, outcome, f"{type(error).__name__}: {error}")


class Recorder:
    """
    Records the events of any number of clients.

    ``now_ns`` is a clock that all recorders of one run share. ``keep`` receives each event when it happens: it is the
    ``append`` of a history's events, or writes a line that survives this process. A call without a reply, because its
    process died, may have happened.

    The names of clients are unique within a run. A restarted process uses new names.
    """

    def __init__(self, now_ns: Callable[[], int], keep: Callable[[Event], object]) -> None:
        self._now_ns = now_ns
        self._keep = keep
        self._numbers = count(1)

    def invoke(self, client: str, operation: Operation) -> PendingCall:
        """Record the start of an operation, before the client performs it."""
        number = next(self._numbers)
        self._keep(Event(self._now_ns(), client, number, EventKind.INVOKE, operation))

        def tell(kind: EventKind, reply: Reply | None, error: str) -> None:
            self._keep(Event(self._now_ns(), client, number, kind, None, reply, error))

        return PendingCall(tell)

    async def call(
        self,
        client: str,
        operation: Operation,
        work: Callable[[], Awaitable[T]],
        reply: Callable[[T], Reply] = lambda _: Done(),
    ) -> T:
        """Do the ``work`` of one operation and record its outcome; raises the errors of the work."""
        asked = self.invoke(client, operation)
        try:
            result = await work()
        except BaseException as error:
            asked.raised(error)
            raise
        asked.ok(reply(result))
        return result


def classify_error(error: BaseException) -> tuple[EventKind, Outcome | None]:
    """
    Return the outcome of a call that raised an exception, and the outcome of its transaction if the exception shows it.
    """
    match error:
        case TransactionHasFailedOperations():
            return EventKind.FAIL, Outcome("ABORTED")
        case InvalidTransactionState():
            return EventKind.FAIL, Outcome(error.actual.value)
        case DecidedButLate() | asyncio.CancelledError():
            return EventKind.UNKNOWN, None
        case _ if isinstance(error, _NOTHING_CHANGED):
            return EventKind.FAIL, None
    return EventKind.UNKNOWN, None
