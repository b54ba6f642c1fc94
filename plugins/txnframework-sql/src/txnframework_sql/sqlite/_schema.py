"""Creation and upgrade of a file's schema."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, column, insert, select, table

from txnframework_sql._revisions import Schema, refuse_older, schema_of, upgrade_over
from txnframework_sql.schema import VERSION_TABLE, store
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, sqlite_code
from txnframework_sql.steps.statements import row

if TYPE_CHECKING:
    from txnframework_sql.sqlite._connection import SqliteConnection

_STORED_REVISION: Select[tuple[Any]] = select(column("version_num")).select_from(table(VERSION_TABLE))
_ADD_IDENTITY = insert(store)


def ensure_current(connection: SqliteConnection, new_identity: str) -> None:
    """
    Create the schema in an empty file; a current database costs one query.

    Several processes may call this at the same time: the one that gets the write lock creates the schema. All of it is
    one transaction, so a crash leaves the earlier state.

    :raises InvalidInput: the database belongs to another program, or to an earlier release.
    :raises UnknownFormat: the database was created or upgraded by a later release.
    """
    schema = found_schema(connection)
    refuse_older(schema, connection.shown_url)
    if schema is Schema.NONE:
        upgrade(connection, new_identity)


def found_schema(connection: SqliteConnection) -> Schema:
    """Return the schema state of the file; see ``schema_of``."""
    connection.begin_read()
    try:
        return _schema(connection)
    finally:
        connection.rollback()


def stored_revision(connection: SqliteConnection) -> str | None:
    """Return the revision stored in the file, within a transaction."""
    try:
        found = connection.perform(row(_STORED_REVISION))
    except DATABASE_ERRORS as error:
        # "no such table" has only the general code; a locked or damaged file has a specific one.
        if sqlite_code(error) != sqlite3.SQLITE_ERROR:
            raise
        return None
    return str(found[0]) if found else None


def upgrade(connection: SqliteConnection, new_identity: str) -> None:
    """
    Upgrade the file to the schema of this release, in one transaction.

    :param new_identity: the identity of a store that this call creates.
    """
    connection.use_write_ahead_log()
    connection.begin_write()
    try:
        schema = _schema(connection)
        if schema is not Schema.CURRENT:
            # After a statement the connection counts as being in a transaction, so that Alembic neither begins nor
            # commits one.
            connection.sqlalchemy_connection.exec_driver_sql("SELECT 1")
            upgrade_over(connection.sqlalchemy_connection)
        if schema is Schema.NONE:
            connection.write_many(_ADD_IDENTITY, [{"name": "identity", "value": new_identity}])
        connection.commit()
    finally:
        connection.rollback()


def _schema(connection: SqliteConnection) -> Schema:
    tables = connection.table_names()
    found = stored_revision(connection) if VERSION_TABLE in tables else None
    return schema_of(found, bool(tables), connection.shown_url)
