"""Connections of psycopg 3, synchronous and asynchronous."""

from __future__ import annotations

from typing import Any

from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from txnframework.errors import InvalidInput, Unavailable
from txnframework_sql.application._connection import LOSSES, Row, Run, failing, lost
from txnframework_sql.application._texts import by_name


class PsycopgConnection:
    """
    A connection of psycopg; see ``ApplicationConnection``.

    :param run: calls the methods of a synchronous connection; None: the connection is asynchronous.
    """

    kind = "postgresql"

    def __init__(self, driver: Any, what: str, run: Run | None) -> None:
        self.what = what
        self._driver = driver
        self._run = run

    @property
    def notices_end(self) -> bool:
        """Return False: psycopg begins another one with the next statement."""
        return False

    async def begin(self) -> bool:
        """Join the open transaction; without one, psycopg begins one with the next statement."""
        if self._driver.broken:
            raise lost(self.what, LOSSES)
        if self._driver.closed:
            raise InvalidInput(f"{self.what} is closed; pass an open one")
        if self._driver.info.pipeline_status is not PipelineStatus.OFF:
            raise InvalidInput(f"{self.what} is in pipeline mode; end the pipeline before the block begins")
        is_idle = self._driver.info.transaction_status is TransactionStatus.IDLE
        if self._driver.autocommit and is_idle:
            await self._fetch("BEGIN", ())
        return is_idle

    async def execute(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement."""
        return (await self._fetch(text, arguments))[0]

    async def flush(self) -> None:
        """Do nothing: a connection keeps no rows back."""

    async def is_joined(self) -> bool:
        """Return False outside a transaction; the server distinguishes two transactions."""
        return self._driver.info.transaction_status is not TransactionStatus.IDLE

    async def has_savepoint(self) -> bool:
        """Return False: the server finds savepoints."""
        return False

    async def watch(self) -> None:
        """Do nothing: psycopg shows no statements."""

    async def leave(self) -> None:
        """Do nothing."""

    def is_in_transaction(self) -> bool:
        """Return whether the driver is in a transaction."""
        return bool(self._driver.info.transaction_status)

    def changes(self) -> int:
        """Return 0: only SQLite counts changes."""
        return 0

    async def commit(self, check: str | None) -> None:
        """
        Commit; not by the driver's method, which does not report that the server rolled back instead.

        The check and the COMMIT are one message, because the statement of another task or thread may be waiting.
        """
        _, status = await self._fetch("COMMIT" if check is None else f"{failing(check)}; COMMIT", ())
        if status != "COMMIT":
            raise Unavailable(f"{self.what} was rolled back, because a statement in its transaction had failed")

    async def rollback(self) -> None:
        """Roll back."""
        if not self._driver.closed and self._driver.info.transaction_status is not TransactionStatus.IDLE:
            await self._fetch("ROLLBACK", ())

    async def _fetch(self, text: str, arguments: tuple[object, ...]) -> tuple[list[Row], str | None]:
        named, parameters = by_name(text, arguments)
        if self._run is not None:
            found: tuple[list[Row], str | None] = await self._run(lambda: self._fetch_here(named, parameters))
            return found
        async with self._driver.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(named, parameters, prepare=None if parameters else False)
            rows = await cursor.fetchall() if cursor.description else []
            while cursor.nextset():
                pass
            return rows, cursor.statusmessage

    def _fetch_here(self, named: str, parameters: dict[str, object] | None) -> tuple[list[Row], str | None]:
        with self._driver.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(named, parameters, prepare=None if parameters else False)
            rows = cursor.fetchall() if cursor.description else []
            while cursor.nextset():
                pass
            return rows, cursor.statusmessage
