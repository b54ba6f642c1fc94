"""What performs the steps of stores in a database; one implementation for each kind of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from txnframework.errors import TxnFrameworkError
from txnframework_sql.steps.calls import Steps
from txnframework_sql.steps.changes import Change

T = TypeVar("T")

Observer = Callable[[tuple[Change, ...]], None]
"""Called after a commit, in any thread, with what it changed; must be quick and not raise."""


class Executor(Protocol):
    """
    Performs steps; used in the event loop in which it was opened.

    What is given to ``read`` and ``write`` makes new steps each time it is called: they may have to be performed again.

    :raises Closed: it was closed, or this process was forked from the one that opened it.
    """

    shown_url: str
    """The database's URL, as it may be printed."""

    async def read(self, work: Callable[[], Steps[T]]) -> T:
        """Return what steps find in one view that holds every write confirmed before this call."""

    async def write(self, work: Callable[[], Steps[T]]) -> T:
        """
        Return what steps return, once what they wrote is durable.

        They raise before they write, or everything they wrote is undone.
        """

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after every commit of this executor, also after one that may have happened."""

    def ignore(self, observer: Observer) -> None:
        """Do not call ``observer`` any more."""

    def require_open(self) -> None:
        """Raise Closed if this cannot be used any more."""

    async def close(self) -> None:
        """Let go of the database, after what is under way; may be repeated."""


def copy_of(error: TxnFrameworkError, cause: BaseException | None) -> TxnFrameworkError:
    """Return an exception for one caller: raising one object in several tasks would mix up their tracebacks."""
    own = type(error)(*error.args)
    own.__cause__ = cause
    return own
