"""One connection: its statements and transactions, the outcomes after a failure, and writes without a reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import asyncpg

from txnframework.errors import InvalidInput, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework_sql.postgresql._errors import (
    POSTGRESQL_ERRORS,
    breaks_connection,
    in_doubt,
    translated,
)
from txnframework_sql.postgresql._server import Server

_LOG = logging.getLogger(__name__)

Row = asyncpg.Record
"""A row, accessible by position, by column name, or by unpacking like a tuple."""

if TYPE_CHECKING:
    Driver = asyncpg.Connection[Row]
else:
    Driver = asyncpg.Connection

SCHEMA = "schema_of_store"
"""
In statements, the schema of a store's tables and functions.

Another login may be allowed to create functions in that schema. So no connection has it in its search path. Otherwise a
function there, with argument types that fit a call better than PostgreSQL's own, would run with our rights.
"""

PINNED_PATH = "pg_catalog, pg_temp"
"""The search path for names without a schema: only PostgreSQL's own names."""

FOLLOW_THE_INDEX = "SET enable_seqscan = off;SET enable_bitmapscan = off;SET plan_cache_mode = 'force_generic_plan';"
"""
Forces plans that follow the index, which every statement has.

A plan is kept as long as the connection. While a table is small, or has no statistics, a sequential scan or a sort
looks cheaper than the index. With these settings there is one plan for all arguments, and it is made once. For many
statements, planning takes ten times as long as execution.
"""

# Without READ WRITE, to respect an administrator's default_transaction_read_only.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_VIEW = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# The statement waits for the end of the process, which may be in the middle of a commit; a commit is not interrupted.
_END = "SELECT pg_terminate_backend(pid, $3) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
_END_MS = 5_000
# How long a cancelled statement may take to end before its connection is terminated.
_SETTLE_S = 5


@dataclass(frozen=True, slots=True)
class Backend:
    """The server's process for one connection; a later process with the same pid has another start time."""

    pid: int
    started: datetime


@lru_cache(64)
def quote_schema(schema: str, shown_url: str) -> str:
    """
    Return a schema's name, quoted for use in statements.

    :raises InvalidInput: the search path names no schema, or the name cannot be used.
    """
    if schema in ("", "pg_catalog"):
        raise InvalidInput(
            f"{shown_url}: no schema of the user's search_path exists; create one with CREATE SCHEMA, or name another"
            " in the URL (?options=-csearch_path%3Dname)"
        )
    if set(schema) & set("'\"\\$\0"):
        raise InvalidInput(f"{shown_url}: a schema whose name holds a quote, $ or \\ cannot be used; rename it")
    return f'"{schema}"'


@lru_cache(1024)
def qualify(text: str, schema: str) -> str:
    """Return a statement with the quoted schema in place of ``SCHEMA``."""
    return text.replace(f"{SCHEMA}.", f"{schema}.")


class Connection:
    """
    A connection that is lent to one caller at a time.

    A statement outside a transaction is a transaction of its own. ``read`` and ``write`` differ in the error that they
    raise after a failure. A failed read changed nothing. A write without a reply raises OutcomeUnknown. Inside a
    transaction, nothing is changed before its COMMIT is sent, so a write there raises a plain error.

    Every error is one of the framework's. After ``RetryableConflict`` the same work may be performed again.
    """

    def __init__(self, driver: Driver, about: Row, shown_url: str, reply_timeout_s: float) -> None:
        self.driver = driver
        self.backend = Backend(about["pid"], about["backend_start"])
        self.schema: str = about["schema"]
        self.last_used_s = 0.0
        """When it was last returned to the pool, by the clock of the event loop."""
        self.reply_timeout_s = reply_timeout_s
        """The time limit for a reply; after it the connection is terminated."""
        self._shown_url = shown_url
        self._is_in_transaction = False
        # A statement was cancelled before its reply: it may still be running.
        self.is_unsettled = False
        # That statement was a write outside a transaction, or a COMMIT: it may still take effect.
        self.is_in_doubt = False

    @property
    def is_lost(self) -> bool:
        """Whether the connection can send nothing any more."""
        return self.driver.is_closed()

    @property
    def is_idle(self) -> bool:
        """Whether the next caller may use it as it is."""
        return not self.is_lost and not self.is_unsettled and not self.driver.is_in_transaction()

    async def read(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement that changes nothing, also not by calling a function."""
        return await self._fetch(text, arguments, may_be_done=False)

    async def write(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement that may change data (RETURNING, or a function's result)."""
        return await self._fetch(text, arguments, may_be_done=not self._is_in_transaction)

    async def change(self, text: str, *arguments: object) -> int:
        """Execute a statement that returns no rows; return the number of changed rows."""
        status = await self._execute(text, *arguments, may_be_done=not self._is_in_transaction)
        # The status is, for example, "UPDATE 3".
        return int(status.rpartition(" ")[2])

    async def script(self, text: str) -> None:
        """
        Execute statements without arguments, separated by semicolons; outside a transaction, all or none take effect.
        """
        await self._execute(text, may_be_done=not self._is_in_transaction)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """
        Run the block in a transaction, in READ COMMITTED.

        An error in the block rolls the transaction back. Only the end of the block raises OutcomeUnknown: COMMIT was
        sent and got no reply.
        """
        await self._execute(_BEGIN, may_be_done=False)
        self._is_in_transaction = True
        try:
            try:
                yield
            except BaseException:
                await self._roll_back()
                raise
            if await self._execute("COMMIT", may_be_done=True) != "COMMIT":
                # The server rolls back a transaction with a failed statement, and reports that COMMIT as a success.
                raise Unavailable(f"{self._shown_url} rolled back a transaction because a statement in it had failed")
        finally:
            self._is_in_transaction = False

    @asynccontextmanager
    async def view(self) -> AsyncIterator[None]:
        """Run all reads in the block in one snapshot, taken no earlier than the first read."""
        await self._execute(_BEGIN_VIEW, may_be_done=False)
        try:
            yield
        finally:
            await self._roll_back()

    async def ping(self, timeout_s: float) -> None:
        """Return when the server has replied; without a reply in time, the connection is terminated."""
        try:
            await self.driver.execute("SELECT 1", timeout=timeout_s)
        except POSTGRESQL_ERRORS:
            self.terminate()

    async def settle(self) -> None:
        """
        Wait for a cancelled statement, and roll back an open transaction; on failure, terminate the connection.

        The driver has asked the server to cancel the statement. Until the server replies, nothing else may be sent.
        """
        try:
            # Real time, because the wait happens outside this process.
            async with asyncio.timeout(min(_SETTLE_S, self.reply_timeout_s)):
                if self.is_unsettled:
                    with suppress(asyncpg.InFailedSQLTransactionError):
                        await self.driver.execute("SELECT 1")
                if self.driver.is_in_transaction():
                    await self.driver.execute("ROLLBACK")
            self.is_unsettled = self.is_in_doubt = False
        except POSTGRESQL_ERRORS:
            self.terminate()

    def terminate(self) -> None:
        """Close the connection immediately, without notice to the server."""
        self.driver.terminate()

    async def _fetch(self, text: str, arguments: tuple[object, ...], *, may_be_done: bool) -> list[Row]:
        try:
            return await self.driver.fetch(self._qualified(text), *arguments, timeout=self.reply_timeout_s)
        except BaseException as error:
            self._record_failure(error, may_be_done=may_be_done)
            raise

    async def _execute(self, text: str, *arguments: object, may_be_done: bool) -> str:
        try:
            return await self.driver.execute(self._qualified(text), *arguments, timeout=self.reply_timeout_s)
        except BaseException as error:
            self._record_failure(error, may_be_done=may_be_done)
            raise

    def _qualified(self, text: str) -> str:
        return qualify(text, quote_schema(self.schema, self._shown_url)) if SCHEMA in text else text

    async def _roll_back(self) -> None:
        """Roll back the transaction if the connection is usable; otherwise ``settle`` or the server does so."""
        if self.is_lost or self.is_unsettled:
            return
        with suppress(TxnFrameworkError):
            await self._execute("ROLLBACK", may_be_done=False)

    def _record_failure(self, error: BaseException, *, may_be_done: bool) -> None:
        """Update the connection's state after ``error``; raise the framework's own error from it, if there is one."""
        if not isinstance(error, POSTGRESQL_ERRORS):
            # Usually a cancelled caller: the driver has asked the server to cancel the statement, and did not wait for
            # it.
            self.is_unsettled = True
            self.is_in_doubt |= may_be_done
            return
        raised = (in_doubt if may_be_done else translated)(error, self._shown_url)
        self.is_in_doubt |= isinstance(raised, OutcomeUnknown)
        if self.is_in_doubt or breaks_connection(error):
            self.terminate()
        raise raised from error


class UncertainWrites:
    """
    The backends that may still execute a write of this process whose reply is no longer awaited, by database.

    Each such write is decided before any caller reads its outcome. A lost connection may still be open on the server.
    The server's process for it (the backend) may wait for a lock or be about to commit, and may finish later. A reader
    could then first find no write, and find it afterwards. So that backend is ended first. Once it has ended, its
    uncommitted writes are never committed.

    They outlive their connections, because a store that was closed with an uncertain write may be opened again.
    """

    def __init__(self) -> None:
        # The value is whether the end of the backend was requested.
        self._backends: dict[Server, dict[Backend, bool]] = {}

    def add(self, server: Server, backend: Backend) -> None:
        """Add a write of unknown outcome."""
        self._backends.setdefault(server, {})[backend] = False

    @property
    def are_there(self) -> bool:
        """Whether there are uncertain writes on any database."""
        return bool(self._backends)

    def settle(self, server: Server, backend: Backend) -> bool:
        """
        Remove a backend that has replied; return whether its connection is reliable.

        It is not reliable if other connections of this process have requested the end of the backend in the meantime.
        That request may still be on its way, and would end whatever the backend executes by then.
        """
        is_being_ended = self._backends.get(server, {}).get(backend, True)
        self._remove(server, backend)
        return not is_being_ended

    async def end(self, server: Server, connection: Connection) -> bool:
        """
        Return when every write of a lost connection has completed or can never complete: whether there were any.

        :raises Unavailable: a backend cannot be ended yet; until it is, the outcome of its write is unknown.
        """
        backends = tuple(self._backends.get(server, ()))
        for backend in backends:
            known = self._backends.get(server, {})
            if backend not in known:
                continue  # it has replied, or another caller has ended it, during the wait for the previous one
            known[backend] = True
            rows = await connection.read(_END, backend.pid, backend.started, _END_MS)
            if rows and not rows[0][0]:
                raise Unavailable(
                    f"{server.shown_url} has not yet ended process {backend.pid}, whose connection was lost during a"
                    " write; try again"
                )
            self._remove(server, backend)
        return bool(backends)

    def _remove(self, server: Server, backend: Backend) -> None:
        left = self._backends.get(server, {})
        left.pop(backend, None)
        if not left:
            self._backends.pop(server, None)


uncertain_writes = UncertainWrites()
"""The uncertain writes of this process."""
