"""Sessions and connections of SQLAlchemy, synchronous and asynchronous."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session

from txnframework.errors import InvalidInput
from txnframework_sql.application._connection import LOSSES, Row, lost, put_undone, reason, undone
from txnframework_sql.application._texts import by_name, needs_begin, savepoint_in

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

    @property
    def notices_end(self) -> bool:
        """Return True: ``watch`` observes statements, too."""
        return True

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

    async def watch(self) -> None:
        """Observe the statements of the application."""
        self._transaction.watch()

    async def leave(self) -> None:
        """Stop observing."""
        self._transaction.leave()

    def is_in_transaction(self) -> bool:
        """Return whether the driver is in a transaction."""
        return self._transaction.driver_state()

    def changes(self) -> int:
        """Return how many rows the connection has changed."""
        return int(self._transaction.driver().total_changes)

    async def commit(self, check: str | None) -> None:
        """Commit."""
        await self._run(lambda _: self._transaction.commit(check))

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
        # Statements of the application after the flush, which comes immediately before the put.
        self._foreign_statements = 0
        self._is_own = False
        self._is_watched = False
        self._was_in_transaction = False
        # The savepoints that are younger than the join, and whether the application went back to an older one.
        self._savepoints: set[str] = set()
        self._is_undone = False

    def begin(self) -> bool:
        is_own = not self._target.in_transaction()
        try:
            self._begin()
        except BaseException:
            if is_own:
                # Otherwise a transaction would stay open that no block ends, also after a loss.
                with suppress(Exception):
                    self.rollback()
            raise
        return is_own

    def _begin(self) -> None:
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
        if isinstance(self._target, Session):
            if self._connection is not None and self._connection.invalidated:
                raise lost(self._what, LOSSES)
            try:
                self._flush(self._target)
            except BaseException as error:
                if not self._target.is_active:
                    # A failed flush has ended the transaction, but the session refuses work before its rollback.
                    self._target.rollback()
                if isinstance(error, DBAPIError) and error.connection_invalidated:
                    raise lost(self._what, reason(error)) from error
                raise
        self._foreign_statements = 0

    def _flush(self, session: Session) -> None:
        session.flush()
        assert self._connection is not None
        for kind in {type(one) for one in session}:
            if session.get_bind(kind).engine is not self._connection.engine:
                raise InvalidInput(
                    f"{self._what} also writes {kind.__name__} to another database, which one COMMIT cannot include;"
                    " use a session of its own for that"
                )

    def is_joined(self) -> bool:
        return self._identity is not None and self._target.get_transaction() is self._identity

    def has_savepoint(self) -> bool:
        if self._is_undone:
            raise undone(self._what)
        # A savepoint of a session's connection is unknown to the session.
        connection = self._connection
        is_in_one = connection is not None and not connection.closed and connection.in_nested_transaction()
        return is_in_one or self._target.in_nested_transaction()

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

    def watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            event.listen(self._connection, "before_cursor_execute", self._before)
            event.listen(self._connection, "after_cursor_execute", self._after)

    def leave(self) -> None:
        if self._is_watched:
            self._is_watched = False
            event.remove(self._connection, "before_cursor_execute", self._before)
            event.remove(self._connection, "after_cursor_execute", self._after)

    def _before(self, _connection: Connection, _cursor: Any, text: str, *_: Any) -> None:
        if self._is_own:
            return
        if self.kind == "sqlite" and needs_begin(text) and not self.driver_state():
            self.execute("BEGIN", ())
        if (savepoint := savepoint_in(text)) is not None:
            is_back, name = savepoint
            self._is_undone |= is_back and name not in self._savepoints
            self._savepoints.add(name)
        self._foreign_statements += 1
        self._was_in_transaction = self.driver_state()

    def _after(self, *_: Any) -> None:
        if not self._is_own and self._was_in_transaction and not self.driver_state():
            self._identity = None  # the statement was a COMMIT or a ROLLBACK

    def commit(self, check: str | None) -> None:
        assert self._connection is not None
        connection = self._connection

        def verify(_: Connection) -> None:
            # An event listener may execute statements until now. A server answers the COMMIT of a failed transaction
            # with a rollback that SQLAlchemy does not report. In a failed transaction, this statement fails too.
            if self._foreign_statements and not self.execute(check or "SELECT 1", ()):
                raise put_undone(self._what)

        event.listen(connection, "commit", verify)
        try:
            if self._is_autocommit:
                verify(connection)
                self.execute("COMMIT", ())
                self._foreign_statements = 0
            self._target.commit()
        finally:
            event.remove(connection, "commit", verify)

    def rollback(self) -> None:
        connection = self._connection
        is_usable = connection is not None and not (connection.closed or connection.invalidated)
        if self._is_autocommit and is_usable and self.driver_state():
            self.execute("ROLLBACK", ())
        self._target.rollback()
        if self.kind == "sqlite" and connection is not None and not connection.closed and self.driver_state():
            # SQLAlchemy has left a transaction whose COMMIT a constraint has refused, and the database has not.
            self.execute("ROLLBACK", ())
            self._target.rollback()

    def _dbapi_connection(self) -> Any:
        assert self._connection is not None
        return self._connection.connection.dbapi_connection
