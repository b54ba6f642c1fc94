"""Which schema a database has, what is to be done about it, and the revisions as Alembic keeps them."""

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

# Alembic is imported only where it is needed: it takes longer than opening a database that is current.


class Schema(Enum):
    """What stands in a database that may be used."""

    CURRENT = "current"
    OLDER = "older"
    NONE = "none"


def schema_of(found: str | None, has_tables: bool, shown_url: str) -> Schema:
    """
    Return what schema a database has; ``found``: the revision that it names, None: it names none.

    :raises InvalidInput: it belongs to another program.
    :raises UnknownFormat: a later release has made or upgraded it.
    """
    if found == REVISION:
        return Schema.CURRENT
    if found is None:
        if has_tables:
            raise InvalidInput(
                f"{shown_url} holds the tables of another program; name another database (in PostgreSQL also: a schema"
                " of its own, by ?options=-csearch_path%3Dname)"
            )
        return Schema.NONE
    if found not in known_revisions():
        raise UnknownFormat(f"the database {shown_url}", found)
    return Schema.OLDER


def refuse_older(schema: Schema, shown_url: str) -> None:
    """
    Raise InvalidInput unless a database can be opened as it is, or made.

    It is not upgraded by itself: that cannot be taken back, and other hosts may still use it with an earlier release.
    """
    if schema is Schema.OLDER:
        raise InvalidInput(
            f"{shown_url} has the schema of an earlier release: close everything that uses it, back it up, and run"
            " 'txnframework sql upgrade'"
        )


def known_revisions() -> frozenset[str]:
    """Return the revisions that this release knows."""
    from alembic.script import ScriptDirectory

    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade_over(connection: Connection) -> None:
    """Bring a database to the revision of this release, within the connection's transaction."""
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def upgrade_script(found: str | None) -> str:
    """
    Return the statements that bring a PostgreSQL database from one revision, or from nothing, to that of this release.

    Rendered and not executed by Alembic: its driver would be another one. So a revision reads nothing by Python.
    """
    from alembic import command

    config = _config()
    config.output_buffer = StringIO()
    config.attributes["dialect"] = "postgresql"
    command.upgrade(config, "head" if found is None else f"{found}:head", sql=True)
    return config.output_buffer.getvalue()


def _config() -> Config:
    """Return Alembic's configuration for the migrations in this package; there is no ini file."""
    from alembic.config import Config

    config = Config()
    # Interpolation would see a percent sign in a path as its own.
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
