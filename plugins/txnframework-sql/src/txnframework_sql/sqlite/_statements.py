"""Steps performed on one open connection; used by its thread alone."""

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


class Statements:
    """
    What steps yield, executed on a connection.

    ``changes`` collects what the present transaction changed, for the watches.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.changes: list[Change] = []
        self._prepared: dict[Executable, _Prepared] = {}
        self._cursor: DBAPICursor = connection.connection.cursor()

    def perform(self, steps: Steps[T]) -> T:
        """Perform steps within the present transaction."""
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
            # Whoever writes here is alone.
            return None
        if isinstance(call, NewNumber):
            return self._answer(Rows(_NEW_NUMBER, {}))[0][0]
        self.changes.append(call)
        return None

    def _first_rows(self, call: FirstRows) -> list[Row]:
        """Fetch rows one by one, as the database finds them, since those that are not wanted may be large."""
        prepared = self._prepare(call.statement)
        found: list[Row] = []
        # One of its own, closed before the transaction ends: what a statement has not found by then is lost to it.
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
