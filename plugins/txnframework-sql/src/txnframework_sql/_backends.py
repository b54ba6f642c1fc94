"""The kinds of database, chosen by URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txnframework.config import redact_url
from txnframework.environment import Environment
from txnframework.errors import InvalidInput
from txnframework_sql._database import Database
from txnframework_sql._options import DatabaseOptions
from txnframework_sql.sqlite import Kind, SqliteDatabase, locate

_POSTGRESQL = ("postgresql", "postgres")


def is_postgresql(url: str) -> bool:
    """Return whether a URL names a PostgreSQL database."""
    return url.partition(":")[0].partition("+")[0] in _POSTGRESQL


@contextmanager
def postgresql_needed(url: str) -> Iterator[None]:
    """Report which extra to install if the block fails to import the PostgreSQL driver."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise InvalidInput(
            f"{redact_url(url)} needs asyncpg; run: pip install 'txnframework-sql[postgresql]'"
        ) from None


def check_url(url: str) -> None:
    """Raise InvalidInput for a URL with an unknown kind of database or unknown parameters."""
    if not is_postgresql(url):
        locate(url)
        return
    with postgresql_needed(url):
        from txnframework_sql.postgresql._server import locate as locate_server
    locate_server(url)


async def open_database(url: str, environment: Environment, options: DatabaseOptions, kind: Kind) -> Database:
    """Open a database; create it, with a new identity, if it does not exist."""
    new_identity = f"sql-{environment.random_bits(64):016x}"
    if not is_postgresql(url):
        return await SqliteDatabase.open(locate(url), options, new_identity, kind)
    with postgresql_needed(url):
        from txnframework_sql.postgresql._database import PostgresqlDatabase
    return await PostgresqlDatabase.open(url, environment, options, new_identity)
