"""The interface of an application's connection, whatever its driver, and what the driver's errors prove."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from txnframework.errors import InvalidInput, OutcomeUnknown, TxnFrameworkError, Unavailable

T = TypeVar("T")

Row = tuple[Any, ...]

LOSSES = "the server ended it, or the network failed"

DIVISION_BY_ZERO = "22012"

Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function in the thread in which the connection is used, and returns its result."""


class ApplicationConnection(Protocol):
    """
    A connection of the application, which is in one of its transactions between ``begin`` and ``commit``.

    Every method may raise the errors of the driver, unchanged.
    """

    kind: str
    """``postgresql`` or ``sqlite``."""
    what: str
    """How sentences name the object that the application gave, such as "the AsyncSession"."""

    @property
    def notices_end(self) -> bool:
        """Whether ``is_joined`` notices that the application ended the transaction, also if it began another one."""

    async def begin(self) -> bool:
        """
        Join the open transaction, or begin one if none is open; return whether none was open.

        After an error, a transaction that this call began is rolled back, if the connection still works.

        :raises InvalidInput: the application closed the object, or one COMMIT of it cannot decide a transaction.
        :raises Unavailable: the connection is lost, or closed for a reason that the driver does not report.
        """

    async def execute(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement; ``$1`` (PostgreSQL) or ``?`` (SQLite) stand for the arguments."""

    async def flush(self) -> None:
        """
        Send the rows that the object has not yet written; one without such a buffer does nothing.

        :raises Unavailable: the connection is lost.
        """

    async def is_joined(self) -> bool:
        """Return False if the driver knows that the joined transaction has ended."""

    async def has_savepoint(self) -> bool:
        """
        Return True if the driver knows that a savepoint is open.

        :raises InvalidInput: the driver knows that the transaction was rolled back to one that is older than ``watch``.
        """

    async def watch(self) -> None:
        """Observe the statements of the application from now on, as far as the driver allows that."""

    async def leave(self) -> None:
        """Stop what ``watch`` began; may be repeated."""

    def is_in_transaction(self) -> bool:
        """Return whether the driver is in a transaction of the database; any thread may ask."""

    def changes(self) -> int:
        """Return how many rows the connection has changed so far (SQLite only); any thread may ask."""

    async def commit(self, check: str | None) -> None:
        """
        Commit.

        :param check: a query that finds no row if the put was rolled back. No statement of the application runs between
            the query and the COMMIT. None: the put cannot be rolled back without the rows.
        :raises InvalidInput: the put was rolled back; nothing was committed.
        """

    async def rollback(self) -> None:
        """Roll back."""


async def require_joined(connection: ApplicationConnection) -> None:
    """Raise InvalidInput if the driver knows that the joined transaction has ended, or that a savepoint is open."""
    if not await connection.is_joined():
        raise ended(connection)
    if await connection.has_savepoint():
        raise in_savepoint(connection)


def ended(connection: ApplicationConnection) -> InvalidInput:
    """Return the error for a joined transaction that the application has ended."""
    return InvalidInput(
        f"the transaction of {connection.what} was committed or rolled back inside the block; leave that to the end of"
        " the block"
    )


def lost(what: str, why: str) -> Unavailable:
    """Return the error for a connection that is lost before its COMMIT was sent: the server rolls back."""
    return Unavailable(f"{what} is lost ({why}); nothing was committed; repeat the block with an open connection")


def in_savepoint(connection: ApplicationConnection) -> InvalidInput:
    """Return the error for an open savepoint."""
    return InvalidInput(f"{connection.what} has an open savepoint; end it before the block begins or ends")


def of_snapshot(connection: ApplicationConnection) -> InvalidInput:
    """Return the error for a step that cannot be made in a transaction that reads one snapshot."""
    return InvalidInput(
        f"{connection.what} reads a snapshot, in which later acknowledgments are not seen; use READ COMMITTED, or begin"
        " the block with client.transaction(commit_with=...) before the first statement"
    )


def of_old_snapshot(connection: ApplicationConnection) -> InvalidInput:
    """Return the error for a transaction whose snapshot does not have the record that decides."""
    return InvalidInput(
        f"{connection.what} has a snapshot that is older than the transaction; begin the block before the first"
        " statement"
    )


def undone(what: str) -> InvalidInput:
    """Return the error for a joined transaction that was rolled back to a savepoint from before the block."""
    return InvalidInput(
        f"{what} was rolled back to a savepoint that is older than the block; end the savepoint before the block begins"
    )


def put_undone(what: str) -> InvalidInput:
    """Return the error for a put that was rolled back with a savepoint before the COMMIT."""
    return InvalidInput(
        f"{what} was rolled back to a savepoint while the block ended; use it in one task or thread only"
    )


def failing(check: str) -> str:
    """Return a statement of PostgreSQL that fails with DIVISION_BY_ZERO if the query finds no row."""
    return f"SELECT 1 / pg_catalog.count(*) FROM ({check}) AS found"  # noqa: S608 - a statement of our own


async def commit(
    connection: ApplicationConnection, check: str | None, proves_rollback: Callable[[Exception], bool]
) -> None:
    """
    Execute ``check`` and the COMMIT; an error of the driver that proves a rollback is raised as it is.

    :raises OutcomeUnknown: the driver raised another error.
    """
    try:
        await connection.commit(check)
    except TxnFrameworkError:
        raise
    except Exception as error:
        if check is not None and sqlstate(error) == DIVISION_BY_ZERO:
            raise put_undone(connection.what) from error
        if proves_rollback(error):
            raise
        raise OutcomeUnknown(f"{connection.what} did not confirm the COMMIT: {reason(error)}") from error


async def roll_back(connection: ApplicationConnection) -> None:
    """Roll back; without a connection, the server does so."""
    try:
        await connection.rollback()
    except Exception:  # Whatever the driver raises, nothing is committed.
        return


async def undo_savepoint(connection: ApplicationConnection, name: str) -> None:
    """Undo and remove a savepoint; without a connection or a usable transaction, nothing is left to undo."""
    try:
        await connection.execute(f"ROLLBACK TO {name}")
        await connection.execute(f"RELEASE {name}")
    except Exception:  # Whatever the driver raises, the error before it is raised.
        return


def sqlstate(error: BaseException) -> str | None:
    """
    Return the code of a PostgreSQL server's answer with severity ERROR, which rolled back what it answers.

    None: the error is no such answer. An answer of severity FATAL ends the connection, and may follow a commit.
    """
    for found in _chain(error):
        code = getattr(found, "sqlstate", None)
        if isinstance(code, str) and _severity(found) == "ERROR":
            return code
    return None


def reason(error: BaseException) -> str:
    """Return the driver's text without the statement and its parameters."""
    original = getattr(error, "orig", None) or error
    text = str(original.args[0]) if original.args else str(original)
    return text.partition("\n")[0] or type(original).__name__


def _severity(error: BaseException) -> object:
    # asyncpg has it on the error, psycopg on the diagnosis.
    found = getattr(error, "severity_en", None)
    return found if found is not None else getattr(getattr(error, "diag", None), "severity_nonlocalized", None)


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = getattr(error, "orig", None) or error.__cause__
    return found
