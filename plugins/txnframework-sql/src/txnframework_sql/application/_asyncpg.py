"""Connections of asyncpg."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import asyncpg

from txnframework_sql.application._connection import Row, failing, lost


class AsyncpgConnection:
    """A connection of asyncpg, also one that its pool has lent; see ``ApplicationConnection``."""

    kind = "postgresql"

    def __init__(self, driver: Any, what: str) -> None:
        self.what = what
        self._driver = driver
        self._own: Any = None
        self._has_ended = False

    @property
    def notices_end(self) -> bool:
        """Whether the transaction was begun here, so that ``watch`` sees the end of it, and no savepoint is older."""
        return self._own is not None

    async def begin(self) -> bool:
        """Join the open transaction, or begin one."""
        if self._is_closed:
            # Neither the driver nor its pool distinguishes a lost connection from one that was closed or returned.
            raise lost(self.what, "it is closed: the server ended it, or the program closed it or returned it")
        if not self._driver.is_in_transaction():
            # Not by a statement: then the driver would refuse savepoints in the block.
            self._own = self._driver.transaction()
            await self._own.start()
        return self._own is not None

    async def execute(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement."""
        return [tuple(row) for row in await self._driver.fetch(text, *arguments)]

    async def flush(self) -> None:
        """Do nothing: a connection keeps no rows back."""

    async def is_joined(self) -> bool:
        """Return False if the transaction has ended; a loss is found later."""
        return self._is_closed or (not self._has_ended and bool(self._driver.is_in_transaction()))

    @property
    def _is_closed(self) -> bool:
        try:
            return bool(self._driver.is_closed())
        except asyncpg.InterfaceError:  # it was returned to its pool, by the program or after a loss
            return True

    async def has_savepoint(self) -> bool:
        """Return False: the server finds savepoints."""
        return False

    async def watch(self) -> None:
        """Look after each statement whether the transaction that was begun here is still open."""
        if self._own is not None:
            self._driver.add_query_logger(self._look)

    def _look(self, _: object) -> None:
        self._has_ended |= not self._is_closed and not self._driver.is_in_transaction()

    async def leave(self) -> None:
        """
        Look no more; let the driver forget the transaction that was begun here, if the application has ended it.

        Otherwise the driver takes each later transaction for a savepoint in it, which the server refuses.
        """
        own, self._own = self._own, None
        if not self._is_closed:
            self._driver.remove_query_logger(self._look)
            if own is not None and not self._driver.is_in_transaction():
                with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):  # it may be lost by now
                    await own.rollback()

    def is_in_transaction(self) -> bool:
        """Return whether the driver is in a transaction."""
        return bool(self._driver.is_in_transaction())

    def changes(self) -> int:
        """Return 0: only SQLite counts changes."""
        return 0

    async def commit(self, check: str | None) -> None:
        """Commit."""
        if self._own is None:
            # One message to the server, so nothing can come in between.
            await self._driver.execute("COMMIT" if check is None else f"{failing(check)}; COMMIT")
            return
        if check is not None:
            # The driver sends the COMMIT before another task runs, and refuses a second statement at the same time.
            await self._driver.fetch(failing(check))
        own, self._own = self._own, None
        await own.commit()

    async def rollback(self) -> None:
        """Roll back."""
        own, self._own = self._own, None
        if own is not None:
            await own.rollback()
        elif self._driver.is_in_transaction():
            await self._driver.execute("ROLLBACK")
