"""One connection: how it is made, statements and transactions, and what is known when one of them fails."""

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
"""A row: by position, by column name, or taken apart as a tuple is."""

if TYPE_CHECKING:
    Driver = asyncpg.Connection[Row]
else:
    Driver = asyncpg.Connection

HERE = "schema_of_store"
"""
In statements, the schema of a store's tables and functions.

Another login may be allowed to create functions in that schema. So no connection searches it: a function placed there,
with argument types that fit a call better than those of PostgreSQL's own, would run with our rights.
"""

PINNED_PATH = "pg_catalog, pg_temp"
"""Where a connection looks for names without a schema: among PostgreSQL's own, and nowhere else."""

FOLLOW_THE_INDEX = "SET enable_seqscan = off;SET enable_bitmapscan = off;SET plan_cache_mode = 'force_generic_plan';"
"""
A plan is kept as long as the connection. While a table is small, or has no statistics, it looks cheaper to read all of
it, or all of a range to sort it, than to follow the index, which every statement has. So there is one plan whatever the
arguments are, and it is made once: for many statements planning takes ten times as long as they do.
"""

_OLDEST = 14
_ABOUT = """
SELECT a.pid, a.backend_start, COALESCE(pg_catalog.current_schema()::text, '') AS schema, s.ssl
FROM pg_catalog.pg_stat_activity a LEFT JOIN pg_catalog.pg_stat_ssl s ON s.pid = a.pid
WHERE a.pid = pg_catalog.pg_backend_pid()
"""
# Without READ WRITE: the administrator who set default_transaction_read_only means it.
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_VIEW = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# How long a statement that was given up may take to end, before its connection is terminated.
_SETTLE_S = 5
_NEXT_HOST = (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)
"""After these the next host may serve; the others say what all hosts would say."""

# The servers, as they may be shown, whose warning was logged.
_warned: set[str] = set()


class _Standby(Unavailable):
    """A write that was confirmed may be visible later on this server, or never."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The server's process for one connection; a later process with the same pid has another start."""

    pid: int
    started: datetime


def quoted(schema: str, shown_url: str) -> str:
    """
    Return a schema's name as statements hold it.

    :raises InvalidInput: there is none, or it has a name that cannot be used.
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
    """Return a statement with the schema, which is quoted already, in place of ``HERE``."""
    return text.replace(f"{HERE}.", f"{schema}.")


class Connection:
    """
    A connection that is lent to one caller at a time.

    A statement outside a transaction is a transaction of its own. ``read`` and ``write`` differ in what is known if
    they fail: a read has changed nothing; a write that got no answer raises OutcomeUnknown, unless it is in a
    transaction, which has changed nothing before its COMMIT was sent. Every error is the framework's own; ``Rerun`` is
    one after which the same work may be done again.
    """

    def __init__(self, driver: Driver, about: Row, shown_url: str, reply_timeout_s: float) -> None:
        self.driver = driver
        self.backend = Backend(about["pid"], about["backend_start"])
        self.schema: str = about["schema"]
        self.last_used_s = 0.0
        """When it was last given back, by the clock of the event loop."""
        self.reply_timeout_s = reply_timeout_s
        """A reply that is later than this is not waited for, and the connection terminated."""
        self._shown_url = shown_url
        self._is_in_transaction = False
        # A statement was given up before its answer came: it may still be under way.
        self.is_unsettled = False
        # It was a write outside a transaction, or a COMMIT: it may still be done.
        self.is_in_doubt = False

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be sent over it any more."""
        return self.driver.is_closed()

    @property
    def is_idle(self) -> bool:
        """Whether the next caller may have it as it is."""
        return not self.is_lost and not self.is_unsettled and not self.driver.is_in_transaction()

    async def read(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement that changes nothing, not even by a function that it calls."""
        return await self._fetch(text, arguments, may_be_done=False)

    async def write(self, text: str, *arguments: object) -> list[Row]:
        """Return the rows of a statement that may change something (RETURNING, or a function's result)."""
        return await self._fetch(text, arguments, may_be_done=not self._is_in_transaction)

    async def change(self, text: str, *arguments: object) -> int:
        """Execute a statement that returns no rows; return how many it changed."""
        status = await self._execute(text, *arguments, may_be_done=not self._is_in_transaction)
        # Such as "UPDATE 3".
        return int(status.rpartition(" ")[2])

    async def script(self, text: str) -> None:
        """Execute statements without arguments, separated by semicolons; outside a transaction all or none of them."""
        await self._execute(text, may_be_done=not self._is_in_transaction)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """
        Do everything in the block or nothing, in READ COMMITTED.

        An error in the block undoes it. OutcomeUnknown comes from its end only: COMMIT was sent and not answered.
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
                # The server rolls back a transaction in which a statement has failed, and calls that success.
                raise Unavailable(f"{self._shown_url} undid a transaction because a statement in it had failed")
        finally:
            self._is_in_transaction = False

    @asynccontextmanager
    async def view(self) -> AsyncIterator[None]:
        """Let all reads in the block see one moment, which is not before the first of them."""
        await self._execute(_BEGIN_VIEW, may_be_done=False)
        try:
            yield
        finally:
            await self._roll_back()

    async def ask(self, timeout_s: float) -> None:
        """Return when the server has answered over it; if it does not in time, the connection is terminated."""
        try:
            await self.driver.execute("SELECT 1", timeout=timeout_s)
        except POSTGRESQL_ERRORS:
            self.terminate()

    async def settle(self) -> None:
        """
        Wait for what was given up, and undo an open transaction; if that fails, terminate the connection.

        The driver has asked the server to cancel the statement; until it answers, nothing else may be sent.
        """
        try:
            # Real time, since it is spent outside this process.
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
        """Let go of the connection at once, without a word to the server."""
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
        """Undo the transaction, if the connection is fit for it; otherwise ``settle`` or the server does."""
        if self.is_lost or self.is_unsettled:
            return
        with suppress(TxnFrameworkError):
            await self._execute("ROLLBACK", may_be_done=False)

    def _note(self, error: BaseException, *, may_be_done: bool) -> None:
        """Note what state the connection is in after ``error``; raise, from it, the framework's own if there is one."""
        if not isinstance(error, POSTGRESQL_ERRORS):
            # Most of all a cancelled caller: the driver has asked the server to give up, and did not wait for it.
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
    Connect to the first host that serves and is no standby, each within the timeout; errors are the framework's own.

    The driver gives all hosts together one timeout, so that a first one that is gone without a word would hide the
    second for ever. ``arguments`` are handed on to it.
    """
    server.require_files()
    if options.require_tls:
        server.require_tls()
    timeout_s = server.number("connect_timeout") or options.connect_timeout_ms / 1000
    for left, url in zip(range(len(server.urls) - 1, -1, -1), server.urls, strict=True):
        try:
            # Real time, whatever the environment's clock says: it is spent outside this process.
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
            # Its text may be a piece of a secret in the place of something else.
            raise InvalidInput(
                f"{server.shown_url}: its host, or one of the variables PGHOST, PGPORT, ..., cannot be used"
            ) from None
    raise AssertionError("unreachable")


async def _connect_to(url: str, server: Server, options: PostgresqlOptions, arguments: dict[str, Any]) -> Connection:
    driver: Driver = await asyncpg.connect(
        url,
        server_settings={
            # What the URL says goes first.
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
    """Return what lets the server notice a client that is gone without a word, and free its locks."""
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
    """Let a session be what the statements rely on, whatever is set for its user and database."""
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
        # A process that is stopped inside a transaction must not hold its locks for ever.
        f"SET idle_in_transaction_session_timeout = {options.statement_timeout_ms};"
        "SET default_transaction_isolation = 'read committed';"
        "SET default_transaction_deferrable = off;"
        "SET jit = off;"
        f"{FOLLOW_THE_INDEX}"
        # What is confirmed is on disk; a stronger setting, which waits for standbys too, is left as it is.
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') = 'off'"
    )
    return Connection(driver, about, server.shown_url, options.reply_timeout_s)
