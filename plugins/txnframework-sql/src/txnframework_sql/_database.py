"""What the stores need of a database; one implementation for each kind of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from txnframework.errors import TxnFrameworkError
from txnframework_sql.steps.calls import Steps
from txnframework_sql.steps.changes import Change

if TYPE_CHECKING:
    from txnframework.environment import Environment
    from txnframework_sql._entries import Entries
    from txnframework_sql._options import LedgerOptions, MetadataOptions
    from txnframework_sql._records import Records
    from txnframework_sql._watch import WakeUps, Watches
    from txnframework_sql.steps.leases import Clock

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


class Database(Executor, Protocol):
    """An executor, and what its kind of database does in its own way."""

    def records(self, options: MetadataOptions) -> Records:
        """Return the operations on records."""

    def clock(self, environment: Environment) -> Clock:
        """Return the clock by which leases expire for everybody who shares the database."""

    def wake_ups(self, watches: Watches, environment: Environment) -> WakeUps:
        """Return what wakes the watches of one store after the commits of others."""

    def entries(self, options: LedgerOptions) -> Entries:
        """Return how the entries of one store's ledgers are appended and read."""


def copy_of(error: TxnFrameworkError, cause: BaseException | None) -> TxnFrameworkError:
    """Return an exception for one caller: raising one object in several tasks would mix up their tracebacks."""
    own = type(error)(*error.args)
    own.__cause__ = cause
    return own
