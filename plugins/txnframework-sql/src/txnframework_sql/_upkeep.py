"""The schema revision of a database, and the upgrade, which runs only on request."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.environment import Environment
from txnframework_sql._opening import is_postgresql, postgresql_needed
from txnframework_sql._options import DatabaseOptions
from txnframework_sql._revisions import Schema
from txnframework_sql.sqlite import locate
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, translated
from txnframework_sql.sqlite._upgrade import found_schema, stored_revision, upgrade


@dataclass(frozen=True, slots=True)
class Standing:
    """The schema state of a database; ``revision`` is None if the database has no schema yet."""

    shown_url: str
    schema: Schema
    revision: str | None


async def standing_of(url: str, environment: Environment) -> Standing:
    """
    Return the schema state of a database; nothing is created or changed.

    :raises InvalidInput: the URL names no usable database, or the database of another program.
    :raises UnknownFormat: the database was created or upgraded by a later release.
    """
    return await _look(url, environment, new_identity=None)


async def upgrade_database(url: str, environment: Environment) -> Standing:
    """
    Upgrade a database to the schema of this release, or create it; return its earlier state.

    :raises InvalidInput: see ``standing_of``, as for UnknownFormat.
    """
    return await _look(url, environment, new_identity=f"sql-{environment.random_bits(64):016x}")


async def _look(url: str, environment: Environment, new_identity: str | None) -> Standing:
    if is_postgresql(url):
        return await _look_at_server(url, environment, new_identity)
    return _look_at_file(url, new_identity)


def _look_at_file(url: str, new_identity: str | None) -> Standing:
    location = locate(url)
    if new_identity is None and not location.path.exists():
        return Standing(location.shown_url, Schema.NONE, None)
    try:
        database = SqliteDatabase(location, DatabaseOptions().lock_timeout_ms)
        try:
            schema = found_schema(database)
            revision = None if schema is Schema.NONE else stored_revision(database)
            if new_identity is not None:
                upgrade(database, new_identity)
        finally:
            database.close()
    except DATABASE_ERRORS as error:
        raise translated(error, location.shown_url) from error
    return Standing(location.shown_url, schema, revision)


async def _look_at_server(url: str, environment: Environment, new_identity: str | None) -> Standing:
    with postgresql_needed(url):
        from txnframework_sql.postgresql import _schema as upgrading
        from txnframework_sql.postgresql._pool import Pool
        from txnframework_sql.postgresql._server import locate as locate_server
    pool = Pool(locate_server(url), environment, DatabaseOptions())
    try:
        async with pool.lend() as connection:
            schema = await upgrading.found_schema(connection, pool.shown_url)
            revision = await upgrading.stored_revision(connection)
            if new_identity is not None:
                await upgrading.upgrade(connection, new_identity, pool.shown_url)
    finally:
        await pool.close()
    return Standing(pool.shown_url, schema, revision)
