"""One open connection, and Core statements run on it; used by its thread alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Executable
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.compiler import SQLCompiler

from txnframework_sql._changes import Change

Row = tuple[Any, ...]


class _Prepared:
    """
    A statement's text for the driver and the order of its parameters.

    Compiled once for the life of the connection. The driver is then called directly, because what SQLAlchemy does for
    each execution takes several times as long as SQLite takes for a statement of this kind.
    """

    def __init__(self, compiled: SQLCompiler) -> None:
        self.text = str(compiled)
        self._defaults = dict(compiled.params)
        self._order: tuple[str, ...] | None = tuple(compiled.positiontup) if compiled.positiontup is not None else None

    def bind(self, given: Mapping[str, object]) -> Any:
        """Return the parameters as the driver takes them."""
        if self._order is None:
            return {**self._defaults, **given}
        return tuple([given[name] if name in given else self._defaults[name] for name in self._order])


class Database(ABC):
    """
    What the thread of a database works with; what differs between databases is abstract here.

    ``changes`` collects what the present transaction changed, for the watches.
    """

    def __init__(self, connection: Connection, shown_url: str) -> None:
        self.connection = connection
        self.shown_url = shown_url
        self.changes: list[Change] = []
        self._prepared: dict[Executable, _Prepared] = {}
        self._cursor: DBAPICursor = connection.connection.cursor()

    # -- statements ---------------------------------------------------------------------------------

    def rows(self, statement: Executable, **parameters: object) -> list[Row]:
        """Return every row of a bounded statement."""
        prepared = self._prepare(statement)
        self._cursor.execute(prepared.text, prepared.bind(parameters))
        return list(self._cursor.fetchall())

    def row(self, statement: Executable, **parameters: object) -> Row | None:
        """Return the one row of a statement, or None."""
        found = self.rows(statement, **parameters)
        return found[0] if found else None

    def stream(self, statement: Executable, **parameters: object) -> Generator[Row, None, None]:
        """
        Yield rows as the database finds them.

        One that is not used up is closed before the transaction ends, or what it would still find is lost.
        """
        prepared = self._prepare(statement)
        cursor = self.connection.connection.cursor()
        try:
            cursor.execute(prepared.text, prepared.bind(parameters))
            while (row := cursor.fetchone()) is not None:
                yield row
        finally:
            cursor.close()

    def write(self, statement: Executable, **parameters: object) -> int:
        """Execute a statement that returns no rows; return how many rows it changed."""
        prepared = self._prepare(statement)
        self._cursor.execute(prepared.text, prepared.bind(parameters))
        return int(self._cursor.rowcount)

    def write_many(self, statement: Executable, rows: Iterable[Mapping[str, object]]) -> None:
        """Execute a statement once for each of the rows."""
        prepared = self._prepare(statement)
        self._cursor.executemany(prepared.text, [prepared.bind(row) for row in rows])

    def _prepare(self, statement: Executable) -> _Prepared:
        prepared = self._prepared.get(statement)
        if prepared is None:
            compiled = statement.compile(dialect=self.connection.dialect)  # type: ignore[attr-defined]
            assert isinstance(compiled, SQLCompiler)
            prepared = self._prepared[statement] = _Prepared(compiled)
        return prepared

    # -- what differs between databases -------------------------------------------------------------

    @abstractmethod
    def begin_read(self) -> None:
        """Take one view of everything that is committed now."""

    @abstractmethod
    def begin_write(self) -> None:
        """Begin a transaction that no other one can be in the way of, once this returns."""

    @abstractmethod
    def commit(self) -> None:
        """Make the transaction durable."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo the transaction; without one, nothing happens."""

    @abstractmethod
    def overwrite_lost(self) -> None:
        """Write, so that the commit of this transaction leaves nothing of a lost one that was found not to be there."""

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is under way."""

    @property
    @abstractmethod
    def writes(self) -> int:
        """A number that grows with every row that this connection changes."""

    @abstractmethod
    def foreign_version(self) -> int:
        """Return a number that differs from an earlier one if other connections committed in between."""

    @abstractmethod
    def table_names(self) -> frozenset[str]:
        """Return the names of all tables."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""
