"""Which kind of database a URL names, and its opening."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txnframework.config import redact_url
from txnframework.environment import Environment
from txnframework.errors import InvalidInput
from txnframework_sql._database import Database
from txnframework_sql._options import DatabaseOptions
from txnframework_sql.sqlite import SqliteDatabase, SqliteExecutor, locate

Kind = type[SqliteDatabase]
"""What connects to a file; tests pass one with faults."""

_POSTGRESQL = ("postgresql", "postgres")


def is_postgresql(url: str) -> bool:
    """Whether a URL names a PostgreSQL database."""
    return url.partition(":")[0].partition("+")[0] in _POSTGRESQL


@contextmanager
def postgresql_needed(url: str) -> Iterator[None]:
    """Say what to install if the driver of PostgreSQL, which the block imports, is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise InvalidInput(
            f"{redact_url(url)} needs asyncpg; run: pip install 'txnframework-sql[postgresql]'"
        ) from None


def check_url(url: str) -> None:
    """Raise InvalidInput for a URL that names no database of a known kind, or has parameters that are not known."""
    if not is_postgresql(url):
        locate(url)
        return
    with postgresql_needed(url):
        from txnframework_sql.postgresql._server import locate as locate_server
    locate_server(url)


async def open_database(url: str, environment: Environment, options: DatabaseOptions, kind: Kind) -> Database:
    """Open a database; made, with an identity of its own, if it is not there."""
    new_identity = f"sql-{environment.random_bits(64):016x}"
    if not is_postgresql(url):
        return await SqliteExecutor.open(locate(url), options, new_identity, kind)
    with postgresql_needed(url):
        from txnframework_sql.postgresql._database import PostgresqlDatabase
    return await PostgresqlDatabase.open(url, environment, options, new_identity)
