"""Steps performed on a connection: the same ones as on a thread of SQLite, compiled for PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import TypeVar

from sqlalchemy import Executable
from sqlalchemy.dialects.postgresql.asyncpg import dialect as PostgresqlDialect  # noqa: N812 - it is a class
from sqlalchemy.sql.compiler import SQLCompiler

from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._qualified import HERE
from txnframework_sql.schema import NUMBERS
from txnframework_sql.steps.calls import FirstRows, Lock, NewNumber, Rows, Steps, Write
from txnframework_sql.steps.changes import Change

T = TypeVar("T")

_DIALECT = PostgresqlDialect()  # type: ignore[no-untyped-call]
_NEW_NUMBER = f"SELECT nextval('{HERE}.{NUMBERS}')"
# More than there are statements in all steps.
_STATEMENTS_MAX = 512


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A statement's text and the order of its parameters; ``defaults`` for those that a caller does not give."""

    text: str
    order: Sequence[str]
    defaults: Mapping[str, object]

    def bind(self, given: Mapping[str, object]) -> list[object]:
        return [given[name] if name in given else self.defaults[name] for name in self.order]


async def perform(connection: Connection, steps: Steps[T], changes: list[Change]) -> T:
    """Perform steps within the connection's transaction or view; ``changes`` gets what they change."""
    answer: object = None
    try:
        while True:
            call = steps.send(answer)
            if isinstance(call, Rows | FirstRows | Write | Lock | NewNumber):
                answer = await _answer(connection, call)
            else:
                changes.append(call)
                answer = None
    except StopIteration as end:
        result: T = end.value
        return result


async def _answer(connection: Connection, call: Rows | FirstRows | Write | Lock | NewNumber) -> object:
    if isinstance(call, NewNumber):
        return (await connection.read(_NEW_NUMBER))[0][0]
    # Until COMMIT is sent nothing is changed, whatever the statements are.
    prepared = _prepare(call.statement)
    arguments = prepared.bind(call.parameters)
    if isinstance(call, Write):
        return await connection.change(prepared.text, *arguments)
    found = [tuple(row) for row in await connection.read(prepared.text, *arguments)]
    if isinstance(call, FirstRows):
        # One round trip; where what is behind them may be large, a function in the database stops in time.
        return list(takewhile(call.is_wanted, found))
    return None if isinstance(call, Lock) else found


@lru_cache(_STATEMENTS_MAX)
def _prepare(statement: Executable) -> _Prepared:
    compiled = statement.compile(  # type: ignore[attr-defined]
        dialect=_DIALECT, schema_translate_map={None: HERE}, render_schema_translate=True
    )
    assert isinstance(compiled, SQLCompiler)
    return _Prepared(str(compiled), tuple(compiled.positiontup or ()), dict(compiled.params))
