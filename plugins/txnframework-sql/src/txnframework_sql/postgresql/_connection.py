"""One connection: its setup, its statements and transactions, and what is known after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import asyncpg

from txnframework.errors import InvalidInput, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework_sql.postgresql._errors import (
    POSTGRESQL_ERRORS,
    in_doubt,
    is_hopeless,
    not_configured,
    not_connected,
    translated,
)
from txnframework_sql.postgresql._options import PostgresqlOptions
from txnframework_sql.postgresql._server import TLS_ADVICE, Server

_LOG = logging.getLogger(__name__)

Row = asyncpg.Record
"""A row, accessible by position, by column name, or by unpacking like a tuple."""

if TYPE_CHECKING:
    Driver = asyncpg.Connection[Row]
else:
    Driver = asyncpg.Connection

HERE = "schema_of_store"
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

_OLDEST = 14
_ABOUT = """
SELECT a.pid, a.backend_start, COALESCE(pg_catalog.current_schema()::text, '') AS schema, s.ssl
FROM pg_catalog.pg_stat_activity a LEFT JOIN pg_catalog.pg_stat_ssl s ON s.pid = a.pid
WHERE a.pid = pg_catalog.pg_backend_pid()
"""
# Without READ WRITE, to respect an administrator's default_transaction_read_only.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_VIEW = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# How long a cancelled statement may take to end before its connection is terminated.
_SETTLE_S = 5
_NEXT_HOST = (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)
"""After these errors the next host is tried; other errors would be the same on all hosts."""

# The printable URLs of the servers whose warning was logged.
_warned: set[str] = set()


class _Standby(Unavailable):
    """The server is a standby: a confirmed write may become visible there later, or never."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The server's process for one connection; a later process with the same pid has another start time."""

    pid: int
    started: datetime


def quoted(schema: str, shown_url: str) -> str:
    """
    Return a schema's name, quoted for use in statements.

    :raises InvalidInput: the search path names no schema, or the name cannot be used.
    """
    if schema in ("", "pg_catalog"):
        raise InvalidInput(
            f"{shown_url}: no schema of the user's search_path exists; make one with CREATE SCHEMA, or name another in"
            " the URL (?options=-csearch_path%3Dname)"
        )
    if set(schema) & set("'\"\\$\0"):
        raise InvalidInput(f"{shown_url}: a schema whose name holds a quote, $ or \\ cannot be used; rename it")
    return f'"{schema}"'


@lru_cache(1024)
def qualified(text: str, schema: str) -> str:
    """Return a statement with the quoted schema in place of ``HERE``."""
    return text.replace(f"{HERE}.", f"{schema}.")


class Connection:
    """
    A connection that is lent to one caller at a time.

    A statement outside a transaction is a transaction of its own. ``read`` and ``write`` differ in what is known after
    a failure. A failed read changed nothing. A write without a reply raises OutcomeUnknown. Inside a transaction,
    nothing is changed before its COMMIT is sent, so a write there raises a plain error.

    Every error is one of the framework's. After ``Rerun`` the same work may be performed again.
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
                raise Unavailable(f"{self._shown_url} undid a transaction because a statement in it had failed")
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

    async def ask(self, timeout_s: float) -> None:
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
        """Close the connection at once, without notice to the server."""
        self.driver.terminate()

    async def _fetch(self, text: str, arguments: tuple[object, ...], *, may_be_done: bool) -> list[Row]:
        try:
            return await self.driver.fetch(self._qualified(text), *arguments, timeout=self.reply_timeout_s)
        except BaseException as error:
            self._note(error, may_be_done=may_be_done)
            raise

    async def _execute(self, text: str, *arguments: object, may_be_done: bool) -> str:
        try:
            return await self.driver.execute(self._qualified(text), *arguments, timeout=self.reply_timeout_s)
        except BaseException as error:
            self._note(error, may_be_done=may_be_done)
            raise

    def _qualified(self, text: str) -> str:
        return qualified(text, quoted(self.schema, self._shown_url)) if HERE in text else text

    async def _roll_back(self) -> None:
        """Roll back the transaction if the connection is usable; otherwise ``settle`` or the server does so."""
        if self.is_lost or self.is_unsettled:
            return
        with suppress(TxnFrameworkError):
            await self._execute("ROLLBACK", may_be_done=False)

    def _note(self, error: BaseException, *, may_be_done: bool) -> None:
        """Update the connection's state after ``error``; raise the framework's own error from it, if there is one."""
        if not isinstance(error, POSTGRESQL_ERRORS):
            # Usually a cancelled caller: the driver has asked the server to cancel the statement, and did not wait for
            # it.
            self.is_unsettled = True
            self.is_in_doubt |= may_be_done
            return
        told = (in_doubt if may_be_done else translated)(error, self._shown_url)
        self.is_in_doubt |= isinstance(told, OutcomeUnknown)
        if self.is_in_doubt or is_hopeless(error):
            self.terminate()
        raise told from error


async def connect(server: Server, options: PostgresqlOptions, **arguments: Any) -> Connection:
    """
    Connect to the first host that accepts connections and is no standby, with one timeout for each host.

    The driver has one timeout for all hosts together: a first host that does not reply would always hide the second.
    ``arguments`` are passed to the driver. Every error is one of the framework's.
    """
    server.require_files()
    if options.require_tls:
        server.require_tls()
    timeout_s = server.number("connect_timeout") or options.connect_timeout_ms / 1000
    for left, url in zip(range(len(server.urls) - 1, -1, -1), server.urls, strict=True):
        try:
            # Real time, whatever the environment's clock: the wait happens outside this process.
            async with asyncio.timeout(timeout_s):
                return await _connect_to(url, server, options, arguments)
        except _NEXT_HOST as error:
            if not left:
                raise not_connected(error, server.shown_url) from error
        except _Standby:
            if not left:
                raise
        except asyncpg.ClientConfigurationError as error:
            raise not_configured(error, server.shown_url) from None
        except POSTGRESQL_ERRORS as error:
            raise not_connected(error, server.shown_url) from error
        except ValueError:
            # The driver's text may contain a part of a secret.
            raise InvalidInput(
                f"{server.shown_url}: its host, or one of the variables PGHOST, PGPORT, ..., cannot be used"
            ) from None
    raise AssertionError("unreachable")


async def _connect_to(url: str, server: Server, options: PostgresqlOptions, arguments: dict[str, Any]) -> Connection:
    driver: Driver = await asyncpg.connect(
        url,
        server_settings={
            # The URL takes precedence.
            **({} if "application_name=" in url else {"application_name": "txnframework"}),
            **_keepalive(server, options),
        },
        command_timeout=options.reply_timeout_s,
        statement_cache_size=options.statements_max,
        max_cached_statement_lifetime=0,
        **arguments,
    )
    try:
        return await _set_up(driver, server, options)
    except BaseException:
        driver.terminate()
        raise


def _keepalive(server: Server, options: PostgresqlOptions) -> dict[str, str]:
    """Return settings by which the server detects a dead client and releases its locks."""
    if server.number("keepalives") == 0:
        return {}
    idle_s = server.number("keepalives_idle") or options.keepalive_idle_s
    interval_s = server.number("keepalives_interval") or options.keepalive_interval_s
    count = server.number("keepalives_count") or options.keepalive_count
    unanswered_ms = server.number("tcp_user_timeout") or 1000 * (idle_s + interval_s * count)
    found = {"idle": idle_s, "interval": interval_s, "count": count}
    return {"tcp_user_timeout": str(unanswered_ms)} | {
        f"tcp_keepalives_{name}": str(value) for name, value in found.items()
    }


async def _set_up(driver: Driver, server: Server, options: PostgresqlOptions) -> Connection:
    """Apply the session settings that the statements rely on, whatever is set for the user and the database."""
    settings = driver.get_settings()
    if driver.get_server_version().major < _OLDEST:
        raise InvalidInput(f"{server.shown_url} is older than PostgreSQL {_OLDEST}; upgrade it")
    if getattr(settings, "in_hot_standby", "off") == "on":
        raise _Standby(
            f"{server.shown_url} is a standby, where a read may miss what was confirmed; name the primary in the URL"
        )
    if settings.server_encoding != "UTF8":
        raise InvalidInput(f"{server.shown_url} stores no Unicode; make a database with createdb --encoding=UTF8")
    about = await driver.fetchrow(_ABOUT)
    assert about is not None
    if not about["ssl"] and server.shown_url not in _warned and server.may_send_password:
        _warned.add(server.shown_url)
        _LOG.warning(
            "%s is on another machine and speaks no TLS: the password and all data can be read on their way; %s, and"
            " set require_tls to be refused otherwise",
            server.shown_url,
            TLS_ADVICE,
        )
    await driver.execute(
        f"SET search_path = {PINNED_PATH};"
        f"SET statement_timeout = {options.statement_timeout_ms};"
        f"SET lock_timeout = {options.lock_timeout_ms};"
        # A process that is stopped inside a transaction must not hold its locks forever.
        f"SET idle_in_transaction_session_timeout = {options.statement_timeout_ms};"
        "SET default_transaction_isolation = 'read committed';"
        "SET default_transaction_deferrable = off;"
        "SET jit = off;"
        f"{FOLLOW_THE_INDEX}"
        # A confirmed write is on disk; a stronger setting, which also waits for standbys, is kept.
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') = 'off'"
    )
    return Connection(driver, about, server.shown_url, options.reply_timeout_s)
