"""Connecting to a server, and the session settings of each connection."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg

from txnframework.errors import InvalidInput, Unavailable
from txnframework_sql._options import PostgresqlOptions
from txnframework_sql.postgresql._connection import FOLLOW_THE_INDEX, PINNED_PATH, Connection, Driver
from txnframework_sql.postgresql._errors import POSTGRESQL_ERRORS, not_configured, not_connected
from txnframework_sql.postgresql._pooler import require_sessions
from txnframework_sql.postgresql._server import TLS_ADVICE, Server

_LOG = logging.getLogger(__name__)

_OLDEST = 14
_ABOUT = """
SELECT a.pid, a.backend_start, COALESCE(pg_catalog.current_schema()::text, '') AS schema, s.ssl,
    pg_catalog.pg_is_in_recovery() AS is_standby
FROM pg_catalog.pg_stat_activity a LEFT JOIN pg_catalog.pg_stat_ssl s ON s.pid = a.pid
WHERE a.pid = pg_catalog.pg_backend_pid()
"""
# The schemas of the search path that exist, and that this user may not use.
_CLOSED = """
SELECT pg_catalog.quote_ident(n.nspname), current_user FROM pg_catalog.pg_namespace n
WHERE NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND n.nspname = ANY (
    pg_catalog.regexp_split_to_array(pg_catalog.current_setting('search_path'), '[", ]+')
)
"""
_NEXT_HOST = (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)
"""After these errors the next host is tried; other errors would be the same on all hosts."""

# The printable URLs of the servers whose warning was logged.
_warned: set[str] = set()


class _Standby(Unavailable):
    """The server is a standby: a confirmed write may become visible there later, or never."""


async def connect(server: Server, options: PostgresqlOptions, checked: set[str], **arguments: Any) -> Connection:
    """
    Connect to the first host that accepts connections and is no standby, with one timeout for each host.

    The driver has one timeout for all hosts together: a first host that does not reply would always hide the second.
    ``arguments`` are passed to the driver. ``checked`` holds the URLs that are known to keep sessions; the others are
    checked, and added. Every error is one of the framework's.
    """
    server.require_files()
    if options.require_tls and not server.require_tls() and server.shown_url not in _warned:
        _warned.add(server.shown_url)
        _LOG.warning(
            "%s: its sslmode encrypts, but does not prove that it is the right server, so an attacker in between can"
            " read all data; %s",
            server.shown_url,
            TLS_ADVICE,
        )
    timeout_s = server.number("connect_timeout") or options.connect_timeout_ms / 1000
    for left, url in zip(range(len(server.urls) - 1, -1, -1), server.urls, strict=True):
        try:
            # Real time, whatever the environment's clock: the wait happens outside this process.
            async with asyncio.timeout(timeout_s):
                connection = await _connect_to(url, server, options, arguments, is_checked=url in checked)
                checked.add(url)
                return connection
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


async def _connect_to(
    url: str, server: Server, options: PostgresqlOptions, arguments: dict[str, Any], *, is_checked: bool
) -> Connection:
    driver: Driver = await asyncpg.connect(
        url,
        # The URL takes precedence.
        server_settings={} if "application_name=" in url else {"application_name": "txnframework"},
        command_timeout=options.reply_timeout_s,
        statement_cache_size=options.statements_max,
        max_cached_statement_lifetime=0,
        **arguments,
    )
    try:
        if not is_checked:
            await require_sessions(driver, url, server.shown_url)
        return await _set_up(driver, server, options)
    except BaseException:
        driver.terminate()
        raise


def _keepalive(server: Server, options: PostgresqlOptions) -> str:
    """Return statements by which the server detects a dead client and releases its locks."""
    if server.number("keepalives") == 0:
        return ""
    idle_s = server.number("keepalives_idle") or options.keepalive_idle_s
    interval_s = server.number("keepalives_interval") or options.keepalive_interval_s
    count = server.number("keepalives_count") or options.keepalive_count
    unanswered_ms = server.number("tcp_user_timeout") or 1000 * (idle_s + interval_s * count)
    return (
        f"SET tcp_user_timeout = {unanswered_ms};"
        f"SET tcp_keepalives_idle = {idle_s};"
        f"SET tcp_keepalives_interval = {interval_s};"
        f"SET tcp_keepalives_count = {count};"
    )


async def _apply_settings(driver: Driver, server: Server) -> None:
    """Make the settings of the URL, such as the search path that chooses the schema."""
    if not server.settings:
        return
    quoted = (tuple(part.replace("\\", "\\\\").replace("'", "''") for part in setting) for setting in server.settings)
    calls = ", ".join(f"pg_catalog.set_config(E'{name}', E'{value}', false)" for name, value in quoted)
    try:
        await driver.execute(f"SELECT {calls}")
    except asyncpg.PostgresError as error:
        if error.severity_en != "ERROR":
            raise
        raise InvalidInput(
            f"{server.shown_url} rejects a setting in the URL's options ({error.args[0]}); correct it, or leave it out"
        ) from error


async def _require_schema(driver: Driver, schema: str, shown_url: str) -> None:
    """Raise InvalidInput if the search path leads to no schema only because rights are missing."""
    closed = () if schema else await driver.fetch(_CLOSED)
    if closed:
        raise InvalidInput(
            f"{shown_url}: the user {closed[0][1]!r} may not use the schema {closed[0][0]}; as the owner of its tables,"
            " run the statements that 'txnframework sql grants' prints for this user"
        )


async def _set_up(driver: Driver, server: Server, options: PostgresqlOptions) -> Connection:
    """Apply the session settings that the statements rely on, whatever is set for the user and the database."""
    settings = driver.get_settings()
    if driver.get_server_version().major < _OLDEST:
        raise InvalidInput(f"{server.shown_url} is older than PostgreSQL {_OLDEST}; upgrade it")
    if settings.server_encoding != "UTF8":
        raise InvalidInput(
            f"{server.shown_url} does not store Unicode; create the database with createdb --encoding=UTF8"
        )
    await _apply_settings(driver, server)
    about = await driver.fetchrow(_ABOUT)
    assert about is not None
    if about["is_standby"]:
        raise _Standby(
            f"{server.shown_url} is a standby, where a read may miss confirmed writes; name the primary in the URL"
        )
    await _require_schema(driver, about["schema"], server.shown_url)
    if not about["ssl"] and server.shown_url not in _warned and server.may_send_password:
        _warned.add(server.shown_url)
        _LOG.warning(
            "%s is on another machine, and the connection does not use TLS: the password and all data can be read in"
            " transit; %s, and set require_tls to refuse such connections",
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
        f"{FOLLOW_THE_INDEX}{_keepalive(server, options)}"
        # A confirmed write is on disk; a stronger setting, which also waits for standbys, is kept.
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') = 'off'"
    )
    return Connection(driver, about, server.shown_url, options.reply_timeout_s)
