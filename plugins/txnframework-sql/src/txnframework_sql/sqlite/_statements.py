"""Steps performed on one open connection; used only by its thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, update
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.compiler import SQLCompiler

from txnframework_sql.schema import counters
from txnframework_sql.steps.calls import Call, FirstRows, Lock, NewNumber, Row, Rows, Steps, Write
from txnframework_sql.steps.changes import Change

T = TypeVar("T")

_NEW_NUMBER = (
    update(counters).where(counters.c.name == "number").values(value=counters.c.value + 1).returning(counters.c.value)
)


class _Prepared:
    """
    A statement's text for the driver and the order of its parameters.

    It is compiled once in the life of the connection, and the driver is called directly. SQLAlchemy's work for each
    execution takes several times as long as SQLite takes for such a statement.
    """

    def __init__(self, compiled: SQLCompiler) -> None:
        self.text = str(compiled)
        self._defaults = dict(compiled.params)
        self._order: tuple[str, ...] | None = tuple(compiled.positiontup) if compiled.positiontup is not None else None

    def bind(self, given: Mapping[str, object]) -> Any:
        """Return the parameters in the driver's form."""
        if self._order is None:
            return {**self._defaults, **given}
        return tuple([given[name] if name in given else self._defaults[name] for name in self._order])


class Statements:
    """
    Executes the calls that steps yield, on a connection.

    ``changes`` collects the changes of the current transaction, for the watches.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.changes: list[Change] = []
        self._prepared: dict[Executable, _Prepared] = {}
        self._cursor: DBAPICursor = connection.connection.cursor()

    def perform(self, steps: Steps[T]) -> T:
        """Perform steps within the current transaction."""
        answer: object = None
        try:
            while True:
                answer = self._answer(steps.send(answer))
        except StopIteration as end:
            result: T = end.value
            return result

    def write_many(self, statement: Executable, rows: Iterable[Mapping[str, object]]) -> None:
        """Execute a statement once for each of the rows."""
        prepared = self._prepare(statement)
        self._cursor.executemany(prepared.text, [prepared.bind(row) for row in rows])

    def _answer(self, call: Call) -> Any:
        if isinstance(call, Rows):
            prepared = self._prepare(call.statement)
            self._cursor.execute(prepared.text, prepared.bind(call.parameters))
            return self._cursor.fetchall()
        if isinstance(call, Write):
            prepared = self._prepare(call.statement)
            self._cursor.execute(prepared.text, prepared.bind(call.parameters))
            return self._cursor.rowcount
        if isinstance(call, FirstRows):
            return self._first_rows(call)
        if isinstance(call, Lock):
            # Only one writer at a time holds the file's write lock.
            return None
        if isinstance(call, NewNumber):
            return self._answer(Rows(_NEW_NUMBER, {}))[0][0]
        self.changes.append(call)
        return None

    def _first_rows(self, call: FirstRows) -> list[Row]:
        """Fetch rows one by one, because the unwanted rows may be large."""
        prepared = self._prepare(call.statement)
        found: list[Row] = []
        # A cursor of its own, closed before the transaction ends: a statement that is not finished by then loses its
        # remaining rows.
        cursor = self.connection.connection.cursor()
        try:
            cursor.execute(prepared.text, prepared.bind(call.parameters))
            while (row := cursor.fetchone()) is not None and call.is_wanted(row):
                found.append(row)
        finally:
            cursor.close()
        return found

    def _prepare(self, statement: Executable) -> _Prepared:
        prepared = self._prepared.get(statement)
        if prepared is None:
            compiled = statement.compile(dialect=self.connection.dialect)  # type: ignore[attr-defined]
            assert isinstance(compiled, SQLCompiler)
            prepared = self._prepared[statement] = _Prepared(compiled)
        return prepared
