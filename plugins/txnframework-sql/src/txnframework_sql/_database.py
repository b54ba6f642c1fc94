"""The interface between the stores and a database; each kind of database implements it."""

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
"""Called after a commit, in any thread, with its changes; must return quickly and not raise."""


class Executor(Protocol):
    """
    Performs steps in the event loop in which it was opened.

    The argument of ``read`` and ``write`` returns new steps on each call, because steps may be performed more than
    once.

    :raises Closed: it was closed, or this process was forked from the one that opened it.
    """

    shown_url: str
    """The database's URL without secrets, fit to be printed."""

    async def read(self, work: Callable[[], Steps[T]]) -> T:
        """Return the result of steps that read one view; the view holds every write confirmed before this call."""

    async def write(self, work: Callable[[], Steps[T]]) -> T:
        """
        Return the result of the steps once their writes are durable.

        Steps raise before they write, or all their writes are rolled back.
        """

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after every commit of this executor, including commits with an unknown outcome."""

    def ignore(self, observer: Observer) -> None:
        """Stop calling ``observer``."""

    def require_open(self) -> None:
        """Raise Closed if this can no longer be used."""

    async def close(self) -> None:
        """Finish the running operations and release the database; idempotent."""


class Database(Executor, Protocol):
    """An executor, and the operations that differ between the kinds of database."""

    def records(self, options: MetadataOptions) -> Records:
        """Return the operations on records."""

    def clock(self, environment: Environment) -> Clock:
        """Return the clock by which leases expire for all users of the database."""

    def wake_ups(self, watches: Watches, environment: Environment) -> WakeUps:
        """Return the wake-ups of one store's watches after the commits of other processes."""

    def entries(self, options: LedgerOptions) -> Entries:
        """Return the operations that append and read the entries of one store's ledgers."""


def copy_of(error: TxnFrameworkError, cause: BaseException | None) -> TxnFrameworkError:
    """Return a copy of an error for one caller: one object raised in several tasks would mix up their tracebacks."""
    own = type(error)(*error.args)
    own.__cause__ = cause
    return own
