"""Creation and upgrade of a PostgreSQL database's schema."""

from __future__ import annotations

from txnframework.errors import Corrupt
from txnframework_sql._revisions import Schema, refuse_older, schema_of, upgrade_script
from txnframework_sql.postgresql._connection import HERE, PINNED_PATH, Connection, quoted
from txnframework_sql.postgresql._functions import ensure_functions
from txnframework_sql.postgresql._payloads import channel_of
from txnframework_sql.schema import VERSION_TABLE

# Read from the catalog: to_regclass may return what was cached before the wait for the lock.
_HAS_REVISION = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = $2)
"""
_REVISION = f"SELECT version_num FROM {HERE}.{VERSION_TABLE}"  # noqa: S608 - a name of our own
_HAS_TABLES = "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1)"
_ADD_IDENTITY = f"INSERT INTO {HERE}.store (name, value) VALUES ('identity', $1)"  # noqa: S608 - a name of our own
_TOKEN = f"SELECT value FROM {HERE}.store WHERE name = 'channel'"  # noqa: S608 - a name of our own
# Of several processes that open a new database at once, one creates the tables. The number is any that other programs
# are unlikely to lock.
_LOCK = "SELECT pg_advisory_xact_lock(7291604151)"


async def ensure_current(connection: Connection, new_identity: str, shown_url: str) -> None:
    """
    Create the schema in an empty database; a current database costs two short queries.

    :raises InvalidInput: the database belongs to another program, or to an earlier release.
    :raises UnknownFormat: the database was created or upgraded by a later release.
    """
    schema = await found_schema(connection, shown_url)
    refuse_older(schema, shown_url)
    if schema is Schema.NONE:
        await upgrade(connection, new_identity, shown_url)


async def found_schema(connection: Connection, shown_url: str) -> Schema:
    """Return the schema state of the database; see ``schema_of``."""
    found = await stored_revision(connection)
    has_tables = found is None and bool((await connection.read(_HAS_TABLES, connection.schema))[0][0])
    return schema_of(found, has_tables, shown_url)


async def stored_revision(connection: Connection) -> str | None:
    """Return the revision stored in the database."""
    if not (await connection.read(_HAS_REVISION, connection.schema, VERSION_TABLE))[0][0]:
        return None
    found = await connection.read(_REVISION)
    return str(found[0][0]) if found else None


async def upgrade(connection: Connection, new_identity: str, shown_url: str) -> None:
    """
    Upgrade the database to the schema of this release, in one transaction.

    The release's functions are created as well, so that a user who may only read and write rows finds them.

    :param new_identity: the identity of a store that this call creates.
    """
    async with connection.transaction():
        await connection.read(_LOCK)
        schema = await found_schema(connection, shown_url)
        if schema is not Schema.CURRENT:
            # Migrations name no schema; the schema in the search path applies to them.
            await connection.script(
                f"SET LOCAL search_path = {quoted(connection.schema, shown_url)}, pg_temp;"
                f"{upgrade_script(await stored_revision(connection))};"
                f"SET LOCAL search_path = {PINNED_PATH}"
            )
        if schema is Schema.NONE:
            await connection.change(_ADD_IDENTITY, new_identity)
    await ensure_functions(connection, shown_url)


async def stored_channel(connection: Connection, shown_url: str) -> str:
    """Return the channel on which the changes of the stores in this schema are notified."""
    found = await connection.read(_TOKEN)
    if not found:
        raise Corrupt(f"{shown_url}: the row 'channel' of the table store is gone; restore it from a backup")
    return channel_of(found[0][0], connection.schema)
