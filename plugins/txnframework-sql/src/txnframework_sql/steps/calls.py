"""The values that steps yield: statements, and changes."""

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
    """A statement whose rows are all returned: it has a limit, or finds few rows anyway."""

    statement: Executable
    parameters: Mapping[str, object]


@dataclass(slots=True, eq=False)
class FirstRows:
    """A statement of whose rows only those before the first unwanted row are returned; that row is fetched as well."""

    statement: Executable
    parameters: Mapping[str, object]
    is_wanted: Callable[[Row], bool]


@dataclass(slots=True, eq=False)
class Write:
    """A statement that returns no rows; its result is the number of changed rows."""

    statement: Executable
    parameters: Mapping[str, object]


@dataclass(slots=True, eq=False)
class Lock:
    """
    A statement that only locks rows until the end of the transaction; a no-op where writers are serialized anyway.

    It comes before the statements that read the data for a decision. A statement that itself waits for a lock sees
    other and joined rows as they were before the wait.
    """

    statement: Executable
    parameters: Mapping[str, object]


@dataclass(slots=True, eq=False)
class NewNumber:
    """A request for a number above all numbers given before, for a version or a name that is never reused."""


Call = Rows | FirstRows | Write | Lock | NewNumber | Change
"""A change is reported to the watches after the commit; nothing is sent back to the steps."""

Steps = Generator[Call, Any, T]
"""
The steps of one transaction, or a part of them; their return value is its result.

They must be correct where writers are serialized (SQLite), and where other writers commit between any two statements
(PostgreSQL at READ COMMITTED). So steps lock a row before they decide on it, and lock rows in a fixed order.
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
    """Return the rows of a statement before the first unwanted one; rows after that one are not fetched."""
    found: list[Row] = yield FirstRows(statement, parameters, is_wanted)
    return found


def write(statement: Executable, **parameters: object) -> Steps[int]:
    """Execute a statement that returns no rows; return the number of changed rows."""
    changed_rows: int = yield Write(statement, parameters)
    return changed_rows


def lock(statement: Executable, **parameters: object) -> Steps[None]:
    """Wait until no other transaction holds the statement's rows, and hold them until the end of this one."""
    yield Lock(statement, parameters)


def new_number() -> Steps[int]:
    """
    Return a number above every number that was given before this call.

    A record's version is taken after the record was locked, so it is above the versions that other writers gave
    meanwhile.
    """
    number: int = yield NewNumber()
    return number


def changed(change: Change) -> Steps[None]:
    """Report a change of the transaction."""
    yield change
