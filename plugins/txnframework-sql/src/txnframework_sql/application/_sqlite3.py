"""Connections of the module sqlite3."""

from __future__ import annotations

import sqlite3
from typing import Any

from txnframework.errors import InvalidInput
from txnframework_sql.application._connection import Row, Run, put_undone

# Marks the joined transaction: when the application has ended it, the mark is gone.
_MARK = "txnframework_joined"


class Sqlite3Connection:
    """A connection of the module sqlite3; see ``ApplicationConnection``."""

    kind = "sqlite"

    def __init__(self, driver: sqlite3.Connection, what: str, run: Run) -> None:
        self.what = what
        self._driver = driver
        self._run = run
        self._is_marked = False
        self._is_lost = False

    @property
    def notices_end(self) -> bool:
        """Return True: the mark is lost with the transaction."""
        return True

    async def begin(self) -> bool:
        """
        Join the open transaction, or begin one.

        By default the driver begins one itself, with the first row that is written. But a COMMIT of the application
        would then not be noticed if another row follows: the driver begins another transaction, which looks the same.
        """
        return bool(await self._run(self._begin))

    async def execute(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement."""
        found: list[Row] = await self._run(lambda: self._execute(text, *arguments))
        return found

    async def flush(self) -> None:
        """Do nothing: a connection keeps no rows back."""

    async def is_joined(self) -> bool:
        """Return False if the joined transaction has ended; the first call removes the mark."""
        return bool(await self._run(self._is_joined))

    async def has_savepoint(self) -> bool:
        """Return False: the driver does not know savepoints, and a COMMIT releases them."""
        return False

    async def watch(self) -> None:
        """Do nothing: a trace callback would replace that of the application."""

    async def leave(self) -> None:
        """Do nothing."""

    def is_in_transaction(self) -> bool:
        """Return whether the driver is in a transaction."""
        return self._driver.in_transaction

    def changes(self) -> int:
        """Return how many rows the connection has changed."""
        return self._driver.total_changes

    async def commit(self, check: str | None) -> None:
        """Commit."""
        await self._run(lambda: self._commit(check))

    async def rollback(self) -> None:
        """Roll back."""
        await self._run(self._roll_back)

    def _commit(self, check: str | None) -> None:
        if check is not None and not self._execute(check):
            raise put_undone(self.what)
        if self._keeps_one_open:
            self._driver.commit()
        else:
            self._execute("COMMIT")

    def _roll_back(self) -> None:
        if self._keeps_one_open:
            self._driver.rollback()
        elif self._driver.in_transaction:
            self._execute("ROLLBACK")

    @property
    def _keeps_one_open(self) -> bool:
        """Whether the driver always has a transaction open, and only its own methods end one."""
        return getattr(self._driver, "autocommit", None) is False

    def _begin(self) -> bool:
        try:
            is_in_transaction = self._driver.in_transaction
        except sqlite3.ProgrammingError as error:
            raise InvalidInput(f"{self.what} cannot be used here ({error}); pass an open one of this thread") from None
        if not is_in_transaction:
            self._execute("BEGIN")
        self._execute(f"SAVEPOINT {_MARK}")
        self._is_marked = True
        return not is_in_transaction

    def _is_joined(self) -> bool:
        if self._is_marked:
            self._is_marked = False
            try:
                self._execute(f"RELEASE {_MARK}")
            except sqlite3.OperationalError:
                self._is_lost = True
        return not self._is_lost and self._driver.in_transaction

    def _execute(self, text: str, *arguments: object) -> list[Row]:
        cursor = self._driver.cursor()
        try:
            cursor.row_factory = None
            cursor.execute(text, arguments)
            found: list[Any] = cursor.fetchall()
            return found
        finally:
            cursor.close()
