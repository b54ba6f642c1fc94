"""
The interface between steps and an executor: changes, the statements that steps yield, and the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from sqlalchemy import Executable

from txnframework.model import IndexEntry, IndexRange, Key, KeyRange


class RecordChange(msgspec.Struct, frozen=True, gc=False):
    """A record was written or deleted; ``indexes``: its index entries before and after."""

    path: str
    partition: str
    indexes: frozenset[IndexEntry]


class LedgerChange(msgspec.Struct, frozen=True, gc=False):
    """The tail of a managed ledger changed."""

    managed_id: int


Change = RecordChange | LedgerChange
Target = Key | KeyRange | IndexRange | LedgerChange
"""The targets of watches; the target of a ``LedgerChange`` is an equal ``LedgerChange``."""


def partition_of(key: Key) -> str:
    """Return the partition of a record; a record without one is alone in a partition named like its path."""
    return key.partition or key.path


def key_of(path: str, partition: str) -> Key:
    """Return the key of a stored record; see ``partition_of``."""
    return Key(path, "" if partition == path else partition)


def concerns(target: Target, change: Change) -> bool:
    """Return whether ``change`` wakes a watch on ``target``."""
    if isinstance(target, LedgerChange):
        return target == change
    if not isinstance(change, RecordChange):
        return False
    if isinstance(target, Key):
        return (target.path, partition_of(target)) == (change.path, change.partition)
    if isinstance(target, KeyRange):
        # Python's text sorts like its UTF-8 form.
        return target.start <= change.path < target.stop and target.partition in (None, change.partition)
    return any(entry.index == target.index and target.start <= entry.key < target.stop for entry in change.indexes)


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
class WriteMany:
    """A statement that is executed once for each of the parameters, and returns no rows."""

    statement: Executable
    parameters: Sequence[Mapping[str, object]]


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


@dataclass(frozen=True, slots=True)
class SkipNumbers:
    """A request to give no number up to ``number`` from now on."""

    number: int


@dataclass(slots=True, eq=False)
class NewNumbers:
    """A request for several such numbers, which grow."""

    count: int


Call = Rows | FirstRows | Write | WriteMany | Lock | NewNumber | NewNumbers | SkipNumbers | Change
"""A change is reported to the watches after the commit; nothing is sent back to the steps."""

Steps = Generator[Call, Any, T]
"""
The steps of one transaction, or a part of them; their return value is its result.

They must be correct where writers are serialized (SQLite), and where other writers commit between any two statements
(PostgreSQL at READ COMMITTED). So steps lock a row before they decide on it, and lock rows in a fixed order.
"""


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


def write_many(statement: Executable, parameters: Sequence[Mapping[str, object]]) -> Steps[None]:
    """Execute a statement once for each of the parameters."""
    if parameters:
        yield WriteMany(statement, parameters)


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


def new_numbers(count: int) -> Steps[list[int]]:
    """Return growing numbers, each above every number that was given before this call."""
    numbers: list[int] = yield NewNumbers(count)
    return numbers


def skip_numbers(number: int) -> Steps[None]:
    """Give no number up to ``number`` from now on; other callers of ``new_number`` must not run at the same time."""
    yield SkipNumbers(number)


def changed(change: Change) -> Steps[None]:
    """Report a change of the transaction."""
    yield change
