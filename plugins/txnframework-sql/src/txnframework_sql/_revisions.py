"""The schema revisions, managed by Alembic: which one a database has, and how it is upgraded."""

from __future__ import annotations

from enum import Enum
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from txnframework.errors import InvalidInput, UnknownFormat
from txnframework_sql.schema import REVISION

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

# Alembic is imported only where it is needed: its import takes longer than opening a current database.


class Schema(Enum):
    """The schema state of a usable database."""

    CURRENT = "current"
    OLDER = "older"
    NONE = "none"


def schema_of(found: str | None, has_tables: bool, shown_url: str) -> Schema:
    """
    Return the schema state of a database.

    :param found: the revision stored in the database, or None.
    :raises InvalidInput: the database belongs to another program.
    :raises UnknownFormat: the database was created or upgraded by a later release.
    """
    if found == REVISION:
        return Schema.CURRENT
    if found is None:
        if has_tables:
            raise InvalidInput(
                f"{shown_url} contains the tables of another program; name another database (in PostgreSQL also: a"
                " schema of its own, by ?options=-csearch_path%3Dname)"
            )
        return Schema.NONE
    if found not in known_revisions():
        raise UnknownFormat(f"the database {shown_url}", found)
    return Schema.OLDER


def refuse_older(schema: Schema, shown_url: str) -> None:
    """
    Raise InvalidInput unless the database is current or empty.

    The upgrade is not automatic: it is irreversible, and other hosts may still use the database with an earlier
    release.
    """
    if schema is Schema.OLDER:
        raise InvalidInput(
            f"{shown_url} has the schema of an earlier release: stop all processes that use it, back it up, and run"
            " 'txnframework sql upgrade'"
        )


def known_revisions() -> frozenset[str]:
    """Return the revisions that this release knows."""
    from alembic.script import ScriptDirectory

    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def revisions_after(found: str | None) -> dict[str, str]:
    """Return the revisions that follow one, or all, in their order, each with what it does."""
    from alembic.script import ScriptDirectory

    walked = reversed(tuple(ScriptDirectory.from_config(_config()).walk_revisions()))
    return {one.revision: " ".join(one.doc.split()) for one in walked if found is None or one.revision > found}


def upgrade_over(connection: Connection) -> None:
    """Upgrade a database to the revision of this release, within the connection's transaction."""
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def upgrade_script(found: str | None, dialect: str = "postgresql") -> str:
    """
    Return the statements that upgrade a database from one revision, or from nothing, to the one of this release.

    Alembic renders the statements and does not execute them; for PostgreSQL, because it would need another driver. A
    revision therefore must not read data in Python.
    """
    from alembic import command

    config = _config()
    config.output_buffer = StringIO()
    config.attributes["dialect"] = dialect
    command.upgrade(config, "head" if found is None else f"{found}:head", sql=True)
    return config.output_buffer.getvalue()


def _config() -> Config:
    """Return Alembic's configuration for the migrations in this package; no ini file is used."""
    from alembic.config import Config

    config = Config()
    # Alembic's interpolation would interpret a percent sign in the path.
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
