"""How one connection comes about: which host is asked, for how long, and what the session is like."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import asyncpg

from txnframework.errors import InvalidInput, Unavailable
from txnframework_sql.postgresql._errors import POSTGRESQL_ERRORS, not_configured, not_connected
from txnframework_sql.postgresql._options import PostgresqlOptions
from txnframework_sql.postgresql._qualified import PINNED_PATH
from txnframework_sql.postgresql._secrecy import needs_tls, refuse_clear, warn_of_clear
from txnframework_sql.postgresql._url import Server, require_files

if TYPE_CHECKING:
    Driver = asyncpg.Connection[asyncpg.Record]
else:
    Driver = asyncpg.Connection

_OLDEST = 14
_APPLICATION = "txnframework"
_HAS_TLS = "SELECT ssl FROM pg_catalog.pg_stat_ssl WHERE pid = pg_catalog.pg_backend_pid()"

_NEXT_HOST = (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)
"""After these the next host may serve; the others say what all hosts would say."""

FOLLOW_THE_INDEX = "SET enable_seqscan = off;SET enable_bitmapscan = off;SET plan_cache_mode = 'force_generic_plan';"
"""
A plan is kept as long as the connection. While a table is small, or has no statistics, it looks cheaper to read all of
it, or all of a range to sort it, than to follow the index, which every statement has. So there is one plan whatever the
arguments are, and it is made once: for many statements planning takes ten times as long as they do.
"""


class _Standby(Unavailable):
    """What was confirmed may be shown later here, or never."""


async def connect(server: Server, options: PostgresqlOptions) -> Driver:
    """
    Connect to the first host that serves and is no standby, each within the timeout; errors are the framework's own.

    The driver itself would give all hosts together one timeout, so that a first one that is gone without a word hides
    the second for ever.
    """
    require_files(server)
    if options.require_tls:
        refuse_clear(server)
    timeout_s = server.number("connect_timeout") or options.connect_timeout_ms / 1000
    # Without a host in the URL it is the driver that knows where libpq looks.
    places = [([host], [port]) for host, port in zip(server.hosts, server.ports, strict=False)]
    for number, (hosts, ports) in enumerate(places or [([], list(server.ports))], start=1):
        try:
            # Real time, whatever the environment's clock says: it is spent outside this process.
            async with asyncio.timeout(timeout_s):
                return await _connect_to(server, options, hosts, ports)
        except _NEXT_HOST as error:
            if number >= len(places):
                raise not_connected(error, server.shown_url) from error
        except _Standby:
            if number >= len(places):
                raise
        except asyncpg.ClientConfigurationError as error:
            raise not_configured(error, server.shown_url) from None
        except POSTGRESQL_ERRORS as error:
            raise not_connected(error, server.shown_url) from error
        except ValueError:
            # Its text may be a piece of a secret that stands where something else was looked for.
            raise InvalidInput(
                f"{server.shown_url}: its host, or one of the variables PGHOST, PGPORT, ..., cannot be used"
            ) from None
    raise AssertionError("unreachable")


async def _connect_to(server: Server, options: PostgresqlOptions, hosts: list[str], ports: list[int]) -> Driver:
    driver: Driver = await asyncpg.connect(
        f"postgresql://?{server.driver_query}" if server.driver_query else "postgresql://",
        host=hosts or None,
        port=ports or None,
        user=server.user,
        password=server.password,
        database=server.database,
        passfile=server.passfile,
        server_settings={"application_name": _APPLICATION, **dict(server.settings)},
        # When a reply is so late, the connection is taken for lost; see ``Connection`` for what has no such timer.
        command_timeout=options.reply_timeout_s,
    )
    try:
        _watch_over(driver, server, options)
        if needs_tls(server, hosts) and not await driver.fetchval(_HAS_TLS):
            warn_of_clear(server)
        await _set_up(driver, server, options)
    except BaseException:
        driver.terminate()
        raise
    return driver


async def _set_up(driver: Driver, server: Server, options: PostgresqlOptions) -> None:
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
    await driver.execute(
        # Where the user's names would be looked for, kept for ``Backend``; from then on they are not.
        "SELECT pg_catalog.set_config('txnframework.schema', COALESCE(pg_catalog.current_schema()::text, ''), false);"
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


def _watch_over(driver: Driver, server: Server, options: PostgresqlOptions) -> None:
    """Let the operating system notice a server that is gone without a word."""
    connected: socket.socket | None = driver._transport.get_extra_info("socket")  # type: ignore[attr-defined]
    if (
        connected is None
        or connected.family not in (socket.AF_INET, socket.AF_INET6)
        or server.number("keepalives") == 0
    ):
        return
    idle_s = server.number("keepalives_idle") or options.keepalive_idle_s
    interval_s = server.number("keepalives_interval") or options.keepalive_interval_s
    count = server.number("keepalives_count") or options.keepalive_count
    unanswered_ms = server.number("tcp_user_timeout") or 1000 * (idle_s + interval_s * count)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPINTVL", interval_s),
        ("TCP_KEEPCNT", count),
        ("TCP_USER_TIMEOUT", unanswered_ms),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
