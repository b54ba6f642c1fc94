"""Creation and upgrade of a file's schema."""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, column, insert, select, table

from txnframework.errors import InvalidInput
from txnframework_sql._revisions import Schema, refuse_older, schema_of, upgrade_over
from txnframework_sql.schema import VERSION_TABLE, metadata, store
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, sqlite_code
from txnframework_sql.steps.statements import row

if TYPE_CHECKING:
    from txnframework_sql.sqlite._connection import FileContents, SqliteConnection

_STORED_REVISION: Select[tuple[Any]] = select(column("version_num")).select_from(table(VERSION_TABLE))
_LOG = logging.getLogger(__name__)
_ADD_IDENTITY = insert(store)
_ENCODING = "UTF-8"
_NAMES = frozenset(
    {VERSION_TABLE}
    | {name for each in metadata.tables.values() for name in (each.name, *(index.name or "" for index in each.indexes))}
)


def ensure_current(connection: SqliteConnection, new_identity: str) -> None:
    """
    Create the schema in a file without it; a current database costs one query.

    Tables of an application in the file are left as they are.

    Several processes may call this at the same time: the one that gets the write lock creates the schema. All of it is
    one transaction, so a crash leaves the earlier state.

    :raises InvalidInput: the file belongs to another program or to an earlier release, or has a table of the same name.
    :raises UnknownFormat: the database was created or upgraded by a later release.
    """
    schema = found_schema(connection)
    refuse_older(schema, connection.shown_url)
    if schema is Schema.NONE:
        upgrade(connection, new_identity)


def found_schema(connection: SqliteConnection) -> Schema:
    """Return the schema state of the file; see ``schema_of`` and ``require_adoptable``."""
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
    shown_url = connection.shown_url
    connection.use_write_ahead_log()
    connection.begin_write()
    try:
        schema, others = _schema(connection), connection.contents().tables
        if schema is not Schema.CURRENT:
            # After a statement the connection counts as being in a transaction, so that Alembic neither begins nor
            # commits one.
            connection.sqlalchemy_connection.exec_driver_sql("SELECT 1")
            upgrade_over(connection.sqlalchemy_connection)
        if schema is Schema.NONE:
            connection.write_many(_ADD_IDENTITY, [{"name": "identity", "value": new_identity}])
        connection.commit()
        if schema is Schema.NONE and others:
            _LOG.info("%s has tables of an application; those of the framework were created beside them", shown_url)
    finally:
        connection.rollback()


def _schema(connection: SqliteConnection) -> Schema:
    contents = connection.contents()
    found = stored_revision(connection) if VERSION_TABLE in contents.tables else None
    if found is None:
        require_adoptable(contents, connection.shown_url)
    return schema_of(found, False, connection.shown_url)


def require_adoptable(contents: FileContents, shown_url: str) -> None:
    """
    Raise InvalidInput unless the tables of the framework may be created in a file that does not have them.

    The file may have tables of an application, whose rows can then be part of transactions. SQLite has no schemas, so
    all names must differ.
    """
    if contents.application_id:
        raise InvalidInput(
            f"{shown_url} belongs to another program, whose application_id is {contents.application_id:#x}; name"
            " another file"
        )
    if contents.encoding != _ENCODING:
        raise InvalidInput(
            f"{shown_url} stores texts in {contents.encoding}, which orders names differently; name a file in"
            f" {_ENCODING}"
        )
    if taken := contents.names & _NAMES:
        raise InvalidInput(
            f"{shown_url} has a table or index of another program with the name {min(taken)}, which the framework"
            " needs; rename it, or name another file"
        )
