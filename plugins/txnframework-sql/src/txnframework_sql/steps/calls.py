"""What steps yield: statements, and what they changed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Executable

from txnframework_sql.steps.changes import Change

T = TypeVar("T")

Row = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Rows:
    """A statement whose rows are wanted, all of them: it has a limit, or finds few by itself."""

    statement: Executable
    parameters: Mapping[str, object]


@dataclass(slots=True, eq=False)
class FirstRows:
    """A statement of whose rows only the first are wanted: those before one that is not, which is fetched as well."""

    statement: Executable
    parameters: Mapping[str, object]
    is_wanted: Callable[[Row], bool]


@dataclass(slots=True, eq=False)
class Write:
    """A statement that returns no rows; the number of those that it changed is wanted."""

    statement: Executable
    parameters: Mapping[str, object]


@dataclass(slots=True, eq=False)
class Lock:
    """
    A statement that does nothing but lock rows until the end of the transaction; none where writers are serial anyway.

    It stands before the statements that read what is decided on: a statement that had to wait for a lock itself sees
    of other rows, and of joined ones, what was there before it waited.
    """

    statement: Executable
    parameters: Mapping[str, object]


@dataclass(slots=True, eq=False)
class NewNumber:
    """A number above every one that was given before is wanted, for a version or a name that never returns."""


Call = Rows | FirstRows | Write | Lock | NewNumber | Change
"""A change is told, once the transaction is committed, to whoever watches for it; nothing is sent back."""

Steps = Generator[Call, Any, T]
"""
The steps of one transaction, or a part of them; what they return is its result.

They must be right where nobody else writes at the same time (SQLite), and where others do and commit between any two
statements (PostgreSQL at READ COMMITTED). So whoever decides on a row locks it first, and rows in a fixed order.
"""


def rows(statement: Executable, **parameters: object) -> Steps[list[Row]]:
    """Return every row of a bounded statement."""
    found: list[Row] = yield Rows(statement, parameters)
    return found


def row(statement: Executable, **parameters: object) -> Steps[Row | None]:
    """Return the one row of a statement, or None."""
    found: list[Row] = yield Rows(statement, parameters)
    return found[0] if found else None


def first_rows(statement: Executable, is_wanted: Callable[[Row], bool], **parameters: object) -> Steps[list[Row]]:
    """Return the rows of a statement before the first that is not wanted; what is behind it is not fetched."""
    found: list[Row] = yield FirstRows(statement, parameters, is_wanted)
    return found


def write(statement: Executable, **parameters: object) -> Steps[int]:
    """Execute a statement that returns no rows; return how many rows it changed."""
    changed_rows: int = yield Write(statement, parameters)
    return changed_rows


def lock(statement: Executable, **parameters: object) -> Steps[None]:
    """Wait until nobody else holds the rows of a statement, and hold them until the end of the transaction."""
    yield Lock(statement, parameters)


def new_number() -> Steps[int]:
    """
    Return a number above every one that was given before this call.

    A record's version is taken after the record was locked, so that it is above those that others gave it meanwhile.
    """
    number: int = yield NewNumber()
    return number


def changed(change: Change) -> Steps[None]:
    """Say what the transaction changes."""
    yield change
