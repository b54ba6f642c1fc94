"""Bring a database to the schema of this release: when it is made, and when it was made by an earlier one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, column, insert, select, table

from txnframework.errors import InvalidInput, UnknownFormat
from txnframework_sql.schema import REVISION, VERSION_TABLE, store
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, sqlite_code
from txnframework_sql.steps.calls import row

if TYPE_CHECKING:
    from alembic.config import Config

    from txnframework_sql.sqlite._database import SqliteDatabase

_STORED_REVISION: Select[tuple[Any]] = select(column("version_num")).select_from(table(VERSION_TABLE))
_ADD_IDENTITY = insert(store)


def ensure_current(database: SqliteDatabase, new_identity: str) -> None:
    """
    Make the schema, or upgrade it, unless it is current; a database that is current costs one query.

    Several processes may do this at once: the one that gets the write lock does it, the others find it done. A crash
    in the middle leaves what was there before, since all of it is one transaction.

    :raises InvalidInput: the database belongs to another program.
    :raises UnknownFormat: a later release has made or upgraded it.
    """
    database.begin_read()
    try:
        if _stored_revision(database) == REVISION:
            return
        _refuse_foreign(database)
    finally:
        database.rollback()
    database.use_write_ahead_log()
    database.begin_write()
    try:
        found = _stored_revision(database)
        if found != REVISION:
            _upgrade(database, found)
            if found is None:
                database.write_many(_ADD_IDENTITY, [{"name": "identity", "value": new_identity}])
        database.commit()
    finally:
        database.rollback()


def migrations_config() -> Config:
    """Return Alembic's configuration for the migrations in this package; there is no ini file."""
    from alembic.config import Config

    config = Config()
    # Interpolation would see a percent sign in a path as its own.
    config.set_main_option("script_location", str(Path(__file__).parent.parent / "migrations").replace("%", "%%"))
    return config


def _upgrade(database: SqliteDatabase, found: str | None) -> None:
    # Imported only where it is needed: it takes longer than opening a database that is current.
    from alembic import command
    from alembic.script import ScriptDirectory

    config = migrations_config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise UnknownFormat(f"the database {database.shown_url}", found)
    config.attributes["connection"] = database.connection
    # A statement makes the connection count as being in a transaction, so that Alembic begins and commits none.
    database.connection.exec_driver_sql("SELECT 1")
    command.upgrade(config, "head")


def _stored_revision(database: SqliteDatabase) -> str | None:
    try:
        found = database.perform(row(_STORED_REVISION))
    except DATABASE_ERRORS as error:
        # "no such table" has only the general code; a locked or damaged file has one of its own.
        if sqlite_code(error) != sqlite3.SQLITE_ERROR:
            raise
        return None
    return str(found[0]) if found else None


def _refuse_foreign(database: SqliteDatabase) -> None:
    tables = database.table_names()
    if tables and VERSION_TABLE not in tables:
        raise InvalidInput(f"{database.shown_url} is the database of another program; name another file")
