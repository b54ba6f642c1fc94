"""The command ``txnframework sql``: shows and upgrades the schema of the databases that a configuration names."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import click

from txnframework.cli.output import output_option, print_json
from txnframework.config import load_config
from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput
from txnframework_sql._backends import is_postgresql, postgresql_needed
from txnframework_sql._options import DatabaseOptions
from txnframework_sql._revisions import Schema, revisions_after, upgrade_script
from txnframework_sql.schema import REVISION
from txnframework_sql.sqlite import SqliteConnection, locate
from txnframework_sql.sqlite import _schema as file_schema
from txnframework_sql.sqlite._errors import DATABASE_ERRORS, translated

_CONFIG_FILE = Path("txnframework.toml")

_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="TXNFRAMEWORK_CONFIG",
    metavar="FILE",
    help=f"The configuration file.  [default: {_CONFIG_FILE} if it exists, otherwise the embedded database]",
)
_url = click.option("--url", metavar="URL", help="Use this database instead of those in the configuration.")


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema state of a database; ``revision`` is None if the database has no schema yet."""

    shown_url: str
    schema: Schema
    revision: str | None


@click.group("sql")
def sql() -> None:
    """
    Show and upgrade the schema of SQL databases, and print the rights that a login needs.

    An empty database gets its schema when it is first opened. A database of an earlier release is refused until 'sql
    upgrade' is run. An upgrade is irreversible, and earlier releases refuse the database afterwards.
    """


@sql.command()
@_config
@_url
@output_option
def status(config: Path | None, url: str | None, output: str) -> None:
    """Show the schema of each database."""
    found = [asyncio.run(_schema_status(each)) for each in _urls(config, url)]
    if output == "json":
        print_json([_facts(one) for one in found])
        return
    for one in found:
        click.echo(f"{one.shown_url}: {_described(one)}")


@sql.command()
@_config
@_url
@click.option("--dry-run", is_flag=True, help="Show the revisions and the statements without running them.")
@output_option
def upgrade(config: Path | None, url: str | None, dry_run: bool, output: str) -> None:
    """
    Upgrade each database to the schema of this release.

    Before the upgrade, stop all processes that use the database, and back it up. The upgrade is one transaction: if it
    fails, nothing is changed.
    """
    upgraded = []
    for each in _urls(config, url):
        identity = None if dry_run else f"sql-{SystemEnvironment().random_bits(64):016x}"
        found = asyncio.run(_schema_status(each, identity))
        facts = _facts(found) | {"upgraded": not dry_run and found.schema is not Schema.CURRENT}
        if dry_run:
            facts["statements"] = _statements(found, each)
        if output == "json":
            upgraded.append(facts)
        elif found.schema is Schema.CURRENT:
            click.echo(f"{found.shown_url}: schema {found.revision}, already up to date")
        elif dry_run:
            click.echo(f"{found.shown_url}: schema {found.revision or 'none'}, would be {REVISION}")
            for revision, what in revisions_after(found.revision).items():
                click.echo(f"  {revision}  {what}")
            click.echo(f"\n{facts['statements']}")
        else:
            click.echo(f"{found.shown_url}: schema {REVISION} now, {found.revision or 'none'} before")
    if output == "json":
        print_json(upgraded)


@sql.command()
@click.argument("role")
@_config
@_url
@click.option(
    "--commits-only", is_flag=True, help="Only the rights that a connection of an application needs for commit_with."
)
@output_option
def grants(role: str, config: Path | None, url: str | None, commits_only: bool, output: str) -> None:
    """
    Print the statements that grant ROLE its rights in PostgreSQL.

    Changes nothing: the owner of the tables runs the statements, for instance with psql. ROLE can then open the stores
    and use them, but cannot create or upgrade tables. The tables must exist.
    """
    urls = [each for each in _urls(config, url) if is_postgresql(each)]
    if not urls:
        raise InvalidInput("SQLite has no logins: who may open the file may do everything with it")
    statements = [one for each in urls for one in asyncio.run(_grants(each, role, commits_only))]
    if output == "json":
        print_json(statements)
        return
    for statement in statements:
        click.echo(statement)


async def _grants(url: str, role: str, commits_only: bool) -> tuple[str, ...]:
    with postgresql_needed(url):
        from txnframework_sql.postgresql import _grants as rights
        from txnframework_sql.postgresql import _schema as server_schema
        from txnframework_sql.postgresql._pool import Pool
        from txnframework_sql.postgresql._server import locate as locate_server
    pool = Pool(locate_server(url), SystemEnvironment(), DatabaseOptions())
    try:
        async with pool.lend() as connection:
            found = await server_schema.found_schema(connection, pool.shown_url)
        if found is not Schema.CURRENT:
            raise InvalidInput(f"{pool.shown_url}: no tables of this release; run 'txnframework sql upgrade' first")
        return rights.grants(role, pool.schema, pool.shown_url, commits_only=commits_only)
    finally:
        await pool.close()


def _facts(found: SchemaStatus) -> dict[str, object]:
    """Return the facts about a database: ``revision`` is the one found, and ``changes`` lead to ``needed``."""
    changes = {} if found.schema is Schema.CURRENT else revisions_after(found.revision)
    return {
        "url": found.shown_url,
        "schema": found.schema.value,
        "revision": found.revision,
        "needed": REVISION,
        "changes": [{"revision": revision, "what": what} for revision, what in changes.items()],
    }


def _statements(found: SchemaStatus, url: str) -> str:
    if found.schema is Schema.CURRENT:
        return ""
    return upgrade_script(found.revision, "postgresql" if is_postgresql(url) else "sqlite").strip()


def _described(found: SchemaStatus) -> str:
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


async def _schema_status(url: str, new_identity: str | None = None) -> SchemaStatus:
    """
    Return the schema state of a database; with ``new_identity``, then upgrade or create the database.

    :param new_identity: the identity of a store that this call creates; None: nothing is created or changed.
    :raises InvalidInput: the URL names no usable database, or the database of another program.
    :raises UnknownFormat: the database was created or upgraded by a later release.
    """
    return await _server_status(url, new_identity) if is_postgresql(url) else _file_status(url, new_identity)


def _file_status(url: str, new_identity: str | None) -> SchemaStatus:
    location = locate(url)
    if new_identity is None and not location.path.exists():
        return SchemaStatus(location.shown_url, Schema.NONE, None)
    try:
        connection = SqliteConnection(location, DatabaseOptions().lock_timeout_ms)
        try:
            schema = file_schema.found_schema(connection)
            revision = None if schema is Schema.NONE else file_schema.stored_revision(connection)
            if new_identity is not None:
                file_schema.upgrade(connection, new_identity)
        finally:
            connection.close()
    except DATABASE_ERRORS as error:
        raise translated(error, location.shown_url) from error
    return SchemaStatus(location.shown_url, schema, revision)


async def _server_status(url: str, new_identity: str | None) -> SchemaStatus:
    with postgresql_needed(url):
        from txnframework_sql.postgresql import _schema as server_schema
        from txnframework_sql.postgresql._pool import Pool
        from txnframework_sql.postgresql._server import locate as locate_server
    pool = Pool(locate_server(url), SystemEnvironment(), DatabaseOptions())
    try:
        async with pool.lend() as connection:
            schema = await server_schema.found_schema(connection, pool.shown_url)
            revision = await server_schema.stored_revision(connection)
            if new_identity is not None:
                await server_schema.upgrade(connection, new_identity, pool.shown_url)
    finally:
        await pool.close()
    return SchemaStatus(pool.shown_url, schema, revision)
