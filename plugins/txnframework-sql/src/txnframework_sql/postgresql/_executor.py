"""The performing of steps in the transactions of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import TypeVar

from sqlalchemy import Executable
from sqlalchemy.dialects.postgresql.asyncpg import dialect as PostgresqlDialect  # noqa: N812 - it is a class
from sqlalchemy.sql.compiler import SQLCompiler

from txnframework.errors import Closed
from txnframework_sql.postgresql._connection import SCHEMA, Connection
from txnframework_sql.postgresql._pool import Pool
from txnframework_sql.schema import NUMBERS
from txnframework_sql.steps.statements import (
    Change,
    FirstRows,
    Lock,
    NewNumber,
    NewNumbers,
    Observer,
    Rows,
    SkipNumbers,
    Steps,
    Write,
    WriteMany,
)

T = TypeVar("T")

_NEW_NUMBER = f"SELECT nextval('{SCHEMA}.{NUMBERS}')"
_SKIP_NUMBERS = f"SELECT setval('{SCHEMA}.{NUMBERS}', GREATEST($1::bigint, nextval('{SCHEMA}.{NUMBERS}')))"
_DIALECT = PostgresqlDialect()  # type: ignore[no-untyped-call]
# More than the number of statements in all steps.
_STATEMENTS_MAX = 512


class PostgresqlExecutor:
    """
    Performs each call's steps in a transaction, and restarts them after a conflict with another writer.

    :raises Closed: see ``Pool``.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.shown_url = pool.shown_url
        self._is_closed = False

    async def read(self, work: Callable[[], Steps[T]]) -> T:
        """Return the result of steps that read one view; the view holds every write confirmed before this call."""

        async def look(connection: Connection) -> T:
            async with connection.view():
                return await _perform(connection, work(), [])

        return await self.pool.run(look)

    async def read_loosely(self, work: Callable[[], Steps[T]]) -> T:
        """
        Return the result of steps, each statement in its own snapshot: one round trip each, without BEGIN and COMMIT.
        """
        return await self.pool.run(lambda connection: _perform(connection, work(), []))

    async def write(self, work: Callable[[], Steps[T]]) -> T:
        """
        Return the result of the steps once their writes are durable.

        Steps raise before they write, or all their writes are rolled back.
        """
        changes: list[Change] = []

        async def do(connection: Connection) -> T:
            changes.clear()
            async with connection.transaction():
                return await _perform(connection, work(), changes)

        try:
            return await self.pool.run(do)
        finally:
            # The outcome is not always known: a possible change wakes watches as well.
            self.changed(tuple(changes))

    def changed(self, changes: tuple[Change, ...]) -> None:
        """Report changes of this process, after their commit, to its observers and to the other processes."""
        if changes:
            for observer in tuple(self.pool.observers):
                observer(changes)
            self.pool.notifier.send(changes)

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after every commit of this process."""
        self.pool.observers[observer] = None

    def ignore(self, observer: Observer) -> None:
        """Stop calling ``observer``."""
        self.pool.observers.pop(observer, None)

    def require_open(self) -> None:
        """Raise Closed if this can no longer be used."""
        if self._is_closed:
            raise Closed(f"the store {self.shown_url} was closed")
        self.pool.require_open()


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """
    A statement's text and the order of its parameters; ``defaults`` holds values for parameters that a caller omits.
    """

    text: str
    order: Sequence[str]
    defaults: Mapping[str, object]

    def bind(self, given: Mapping[str, object]) -> list[object]:
        """Return the arguments in the order of the text."""
        return [given[name] if name in given else self.defaults[name] for name in self.order]


async def _perform(connection: Connection, steps: Steps[T], changes: list[Change]) -> T:
    """Perform steps within the connection's transaction or view; append their changes to ``changes``."""
    answer: object = None
    try:
        while True:
            call = steps.send(answer)
            if isinstance(call, Rows | FirstRows | Write | WriteMany | Lock | NewNumber | NewNumbers | SkipNumbers):
                answer = await _answer(connection, call)
            else:
                changes.append(call)
                answer = None
    except StopIteration as end:
        result: T = end.value
        return result


async def _answer(
    connection: Connection, call: Rows | FirstRows | Write | WriteMany | Lock | NewNumber | NewNumbers | SkipNumbers
) -> object:
    if isinstance(call, SkipNumbers):
        await connection.read(_SKIP_NUMBERS, call.number)
        return None
    if isinstance(call, NewNumber):
        return (await connection.read(_NEW_NUMBER))[0][0]
    if isinstance(call, NewNumbers):
        return [(await connection.read(_NEW_NUMBER))[0][0] for _ in range(call.count)]
    if isinstance(call, WriteMany):
        for parameters in call.parameters:
            await _answer(connection, Write(call.statement, parameters))
        return None
    # Nothing is changed before COMMIT is sent, whatever the statements are.
    prepared = prepare(call.statement)
    arguments = prepared.bind(call.parameters)
    if isinstance(call, Write):
        return await connection.change(prepared.text, *arguments)
    found = [tuple(row) for row in await connection.read(prepared.text, *arguments)]
    if isinstance(call, FirstRows):
        # One round trip; where the following rows may be large, a function in the database stops in time.
        return list(takewhile(call.is_wanted, found))
    return None if isinstance(call, Lock) else found


@lru_cache(_STATEMENTS_MAX)
def prepare(statement: Executable) -> PreparedStatement:
    """Return a statement with numbered parameters, and ``SCHEMA`` as the schema of its tables."""
    compiled = statement.compile(  # type: ignore[attr-defined]
        dialect=_DIALECT, schema_translate_map={None: SCHEMA}, render_schema_translate=True
    )
    assert isinstance(compiled, SQLCompiler)
    return PreparedStatement(str(compiled), tuple(compiled.positiontup or ()), dict(compiled.params))
