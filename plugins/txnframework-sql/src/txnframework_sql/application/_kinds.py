"""Recognizes the application's connection, and what people pass by mistake."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from typing import Any

from txnframework.errors import InvalidInput
from txnframework_sql.application._connection import ApplicationConnection, Run

_ADVICE = (
    "pass an open Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy, or a connection of asyncpg,"
    " psycopg 3 or sqlite3"
)


def connection_of(given: object, run: Run) -> ApplicationConnection:
    """
    Return the adapter of an application's connection.

    :param run: calls the methods of a synchronous object, in the thread in which it is used.
    :raises InvalidInput: this is no connection, or no open one; the sentence says what to pass.
    """
    what = f"the {type(given).__name__}"
    if isinstance(given, sqlite3.Connection):
        from txnframework_sql.application._sqlite3 import Sqlite3Connection

        return Sqlite3Connection(given, what, run)
    # A driver whose classes the object may belong to was imported by the application.
    for module, find in (("asyncpg", _asyncpg), ("sqlalchemy", _sqlalchemy), ("psycopg", _psycopg)):
        if module in sys.modules and (found := find(given, what, run)) is not None:
            return found
    for kind, advice in _mistakes():
        if isinstance(given, kind):
            raise InvalidInput(
                f"commit_with is {what.replace('the', 'an' if what[4] in 'AEIOUaeiou' else 'a')}; {advice}"
            )
    raise InvalidInput(f"commit_with is no connection but of the type {type(given).__name__}; {_ADVICE}")


def _sqlalchemy(given: object, what: str, run: Run) -> ApplicationConnection | None:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from txnframework_sql.application._sqlalchemy import SqlalchemyConnection

    if isinstance(given, Session | Connection):
        return SqlalchemyConnection(lambda work: run(lambda: work(given)), given, what)
    if "sqlalchemy.ext.asyncio" not in sys.modules:
        return None
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    if isinstance(given, AsyncSession):
        return SqlalchemyConnection(given.run_sync, given.sync_session, what)
    if isinstance(given, AsyncConnection):
        if given.sync_connection is None:
            raise InvalidInput(f"{what} is not open; open it with: async with engine.connect() as connection")
        return SqlalchemyConnection(given.run_sync, given.sync_connection, what)
    return None


def _asyncpg(given: object, what: str, _: Run) -> ApplicationConnection | None:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    from txnframework_sql.application._asyncpg import AsyncpgConnection

    return AsyncpgConnection(given, what) if isinstance(given, PoolConnectionProxy | asyncpg.Connection) else None


def _psycopg(given: object, what: str, run: Run) -> ApplicationConnection | None:
    import psycopg

    from txnframework_sql.application._psycopg import PsycopgConnection

    if isinstance(given, psycopg.AsyncConnection):
        return PsycopgConnection(given, what, None)
    return PsycopgConnection(given, what, run) if isinstance(given, psycopg.Connection) else None


def _mistakes() -> Iterator[tuple[Any, str]]:
    """Yield what people pass instead of a connection, with a sentence."""
    open_session = "pass a session that it has made: async with factory() as session"
    from_pool = "pass a connection of it: async with pool.acquire() as connection"
    open_connection = "pass a connection of it: async with engine.connect() as connection"
    found = (
        ("sqlalchemy.orm", "sessionmaker", open_session),
        ("sqlalchemy.orm", "scoped_session", "pass the session itself: factory()"),
        ("sqlalchemy.ext.asyncio", "async_sessionmaker", open_session),
        ("sqlalchemy.ext.asyncio", "async_scoped_session", "pass the session itself: factory()"),
        ("sqlalchemy", "Engine", open_connection),
        ("sqlalchemy.ext.asyncio", "AsyncEngine", open_connection),
        ("asyncpg", "Pool", from_pool),
        ("psycopg_pool", "ConnectionPool", "pass a connection of it: with pool.connection() as connection"),
        ("psycopg_pool", "AsyncConnectionPool", "pass a connection of it: async with pool.connection() as connection"),
    )
    for module, name, advice in found:
        if (kind := getattr(sys.modules.get(module), name, None)) is not None:
            yield kind, advice
