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
"""Errors after which what was asked for has certainly not happened."""


class PendingCall:
    """A call that has not ended; exactly one of its methods is called, once."""

    def __init__(self, tell: Callable[[EventKind, Reply | None, str], None]) -> None:
        self._tell = tell

    def ok(self, reply: Reply | None = None) -> None:
        """It happened."""
        self._tell(EventKind.OK, reply or Done(), "")

    def fail(self, error: str, outcome: Outcome | None = None) -> None:
        """It did not happen, and never will."""
        self._tell(EventKind.FAIL, outcome, error)

    def unknown(self, error: str) -> None:
        """It is unknown whether it happened or will happen."""
        self._tell(EventKind.UNKNOWN, None, error)

    def raised(self, error: BaseException) -> None:
        """It raised this exception, which may show whether it happened."""
        kind, outcome = classify_error(error)
        self._tell(kind, outcome, f"{type(error).__name__}: {error}")


class Recorder:
    """
    Records the events of any number of clients.

    ``now_ns`` is a clock that all recorders of one run share; ``keep`` takes each event at the moment it happens: the
    ``append`` of a history's events, or the writing of a line that outlives this process. A call that is never
    answered, because its process died, may have happened.

    The names of clients are unique within a run: a process that is started anew takes others.
    """

    def __init__(self, now_ns: Callable[[], int], keep: Callable[[Event], object]) -> None:
        self._now_ns = now_ns
        self._keep = keep
        self._numbers = count(1)

    def invoke(self, client: str, operation: Operation) -> PendingCall:
        """Record that a client asks for this, before it does."""
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
        """Do the ``work`` of one operation and record what became of it; raises what the work raises."""
        asked = self.invoke(client, operation)
        try:
            result = await work()
        except BaseException as error:
            asked.raised(error)
            raise
        asked.ok(reply(result))
        return result


def classify_error(error: BaseException) -> tuple[EventKind, Outcome | None]:
    """Return what an exception shows about its call, and about the outcome of a transaction."""
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
