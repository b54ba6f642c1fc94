"""The command ``txnframework sql``: shows and upgrades the schema of the databases that a configuration names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from txnframework.config import load_config
from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput
from txnframework_sql._opening import is_postgresql
from txnframework_sql._revisions import Schema
from txnframework_sql._upkeep import Standing, standing_of, upgrade_database
from txnframework_sql.schema import REVISION

_CONFIG_FILE = Path("txnframework.toml")

_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="TXNFRAMEWORK_CONFIG",
    metavar="FILE",
    help=f"The configuration.  [default: {_CONFIG_FILE} if it is there, otherwise the embedded database]",
)
_url = click.option("--url", metavar="URL", help="This database, and not those that the configuration names.")


@click.group("sql")
def sql() -> None:
    """
    Show and upgrade the schema of SQL databases.

    An empty database gets its schema when it is first opened. One of an earlier release is refused until 'sql upgrade'
    was run: an upgrade cannot be taken back, and earlier releases refuse the database afterwards.
    """


@sql.command()
@_config
@_url
def status(config: Path | None, url: str | None) -> None:
    """Show the schema of each database; nothing is changed."""
    for each in _urls(config, url):
        found = asyncio.run(standing_of(each, SystemEnvironment()))
        click.echo(f"{found.shown_url}: {_told(found)}")


@sql.command()
@_config
@_url
def upgrade(config: Path | None, url: str | None) -> None:
    """
    Bring each database to the schema of this release.

    Close everything that uses it, and back it up, before. It is one transaction: if it fails, nothing is changed.
    """
    for each in _urls(config, url):
        found = asyncio.run(upgrade_database(each, SystemEnvironment()))
        if found.schema is Schema.CURRENT:
            click.echo(f"{found.shown_url}: {_told(found)}; nothing was to be done")
        else:
            click.echo(f"{found.shown_url}: schema {REVISION} now, {found.revision or 'none'} before")


def _told(found: Standing) -> str:
    if found.schema is Schema.NONE:
        return f"no schema yet; it gets {REVISION} when it is first opened"
    if found.schema is Schema.OLDER:
        return f"schema {found.revision} of an earlier release, {REVISION} is needed; run 'txnframework sql upgrade'"
    return f"schema {found.revision}, current"


def _urls(config: Path | None, url: str | None) -> list[str]:
    """Return the selected SQL databases, each once."""
    if url is not None:
        return [url]
    settings = load_config(config or (_CONFIG_FILE if _CONFIG_FILE.exists() else None))
    found = dict.fromkeys((settings.metadata.url, settings.ledger.url))
    urls = [each for each in found if is_postgresql(each) or each.startswith("sqlite:")]
    if not urls:
        raise InvalidInput("the configuration names no SQL database; name one with --url")
    return urls
