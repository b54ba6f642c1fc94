"""Sessions and connections of SQLAlchemy, synchronous and asynchronous."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from txnframework.errors import InvalidInput
from txnframework_sql.application._connection import Row
from txnframework_sql.application._texts import by_name

T = TypeVar("T")

Target = Session | Connection
RunWith = Callable[[Callable[[Any], Any]], Awaitable[Any]]
"""Calls a function with the synchronous object, where SQLAlchemy and its driver allow that."""

_DRIVERS = {
    "asyncpg": "postgresql",
    "psycopg": "postgresql",
    "psycopg_async": "postgresql",
    "pysqlite": "sqlite",
    "aiosqlite": "sqlite",
}


class SqlalchemyConnection:
    """A Session or Connection, or their asynchronous forms; see ``ApplicationConnection``."""

    def __init__(self, run: RunWith, target: Target, what: str) -> None:
        self._run = run
        self._transaction = _Transaction(target, what)
        self.kind = ""
        self.what = what

    async def begin(self) -> bool:
        """Join the open transaction, or begin one."""
        is_own = bool(await self._run(lambda _: self._transaction.begin()))
        self.kind = self._transaction.kind
        return is_own

    async def execute(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement."""
        return cast(list[Row], await self._run(lambda _: self._transaction.execute(text, arguments)))

    async def flush(self) -> None:
        """Write the pending objects of a session."""
        await self._run(lambda _: self._transaction.flush())

    async def is_joined(self) -> bool:
        """Return False if the joined transaction has ended."""
        return self._transaction.is_joined()

    async def has_savepoint(self) -> bool:
        """Return whether a savepoint is open."""
        return self._transaction.has_savepoint()

    def is_in_transaction(self) -> bool:
        """Return whether the driver is in a transaction."""
        return self._transaction.driver_state()

    def changes(self) -> int:
        """Return how many rows the connection has changed."""
        return int(self._transaction.driver().total_changes)

    async def commit(self) -> None:
        """Commit."""
        await self._run(lambda _: self._transaction.commit())

    async def rollback(self) -> None:
        """Roll back."""
        await self._run(lambda _: self._transaction.rollback())


class _Transaction:
    """The joined transaction of a synchronous object."""

    def __init__(self, target: Target, what: str) -> None:
        self.kind = ""
        self._target = target
        self._what = what
        self._connection: Connection | None = None
        self._identity: object = None
        self._is_autocommit = False
        # Statements of the application after the last one of this class.
        self._foreign_statements = 0
        self._is_own = False

    def begin(self) -> bool:
        is_own = not self._target.in_transaction()
        if isinstance(self._target, Session):
            self._connection = self._of_session(self._target)
        else:
            if self._target.closed:
                raise InvalidInput(f"{self._what} is closed; pass an open one")
            self._connection = self._target
            if not self._target.in_transaction():
                self._target.begin()
        dialect = self._connection.dialect
        self.kind = _DRIVERS.get(dialect.driver, "")
        if not self.kind:
            raise InvalidInput(
                f"{self._what} uses the driver {dialect.driver}; use asyncpg or psycopg for PostgreSQL, pysqlite or"
                " aiosqlite for SQLite"
            )
        self._identity = self._target.get_transaction()
        self._is_autocommit = dialect.detect_autocommit_setting(self._dbapi_connection())
        if self._is_autocommit and not self.driver_state():
            self.execute("BEGIN", ())
        return is_own

    def _of_session(self, session: Session) -> Connection:
        if session.twophase:
            raise InvalidInput(f"{self._what} commits in two phases; pass a session without twophase")
        try:
            bind = session.get_bind()
        except UnboundExecutionError:
            raise InvalidInput(
                f"{self._what} has no database of its own, only binds for some classes; pass one with bind="
            ) from None
        if isinstance(bind, Connection):
            raise InvalidInput(
                f"{self._what} is bound to a connection whose transaction it does not commit; pass that connection"
            )
        return session.connection()

    def execute(self, text: str, arguments: tuple[object, ...]) -> list[Row]:
        assert self._connection is not None
        parameters: Any = arguments
        if self._connection.dialect.paramstyle == "pyformat":
            text, parameters = by_name(text, arguments)
        self._is_own = True
        try:
            # A cursor on the server, which the application may have asked for, is of no use for one row.
            found = self._connection.exec_driver_sql(
                text, parameters or None, execution_options={"stream_results": False}
            )
            return [tuple(row) for row in found] if found.returns_rows else []
        finally:
            self._is_own = False

    def flush(self) -> None:
        if not isinstance(self._target, Session):
            return
        self._target.flush()
        assert self._connection is not None
        for kind in {type(one) for one in self._target}:
            if self._target.get_bind(kind).engine is not self._connection.engine:
                raise InvalidInput(
                    f"{self._what} also writes {kind.__name__} to another database, which one COMMIT cannot include;"
                    " use a session of its own for that"
                )

    def is_joined(self) -> bool:
        return self._identity is not None and self._target.get_transaction() is self._identity

    def has_savepoint(self) -> bool:
        return self._target.in_nested_transaction()

    def driver(self) -> Any:
        assert self._connection is not None
        return self._connection.connection.driver_connection

    def driver_state(self) -> bool:
        """Return whether the driver is in a transaction of the database."""
        driver = self.driver()
        if hasattr(driver, "info"):
            return bool(driver.info.transaction_status)
        found = getattr(driver, "in_transaction", None)
        return bool(driver.is_in_transaction() if found is None else found)

    def commit(self) -> None:
        assert self._connection is not None
        connection = self._connection
        self._foreign_statements = 0

        def count(*_: Any) -> None:
            self._foreign_statements += not self._is_own

        def check(_: Connection) -> None:
            # A server answers the COMMIT of a failed transaction with a rollback that SQLAlchemy does not report. Any
            # statement of an event listener may have failed. In a failed transaction, this one fails too.
            if self._foreign_statements:
                self.execute("SELECT 1", ())

        event.listen(connection, "before_cursor_execute", count)
        event.listen(connection, "commit", check)
        try:
            if self._is_autocommit:
                self.execute("COMMIT", ())
            self._target.commit()
        finally:
            event.remove(connection, "before_cursor_execute", count)
            event.remove(connection, "commit", check)

    def rollback(self) -> None:
        if self._is_autocommit and self._connection is not None and not self._connection.closed and self.driver_state():
            self.execute("ROLLBACK", ())
        self._target.rollback()

    def _dbapi_connection(self) -> Any:
        assert self._connection is not None
        return self._connection.connection.dbapi_connection
