"""
The tables and functions in a PostgreSQL database: their creation, their upgrade, and the check of existing ones.

Each function is one round trip and one transaction of several statements. The functions belong to a release's code and
not to the revisions of the tables. Their names end in a digest of their text. So releases with different functions use
a database side by side, and a corrected function needs no new revision.

Another login may be allowed to create functions beside the tables. So a function is called only if it has the expected
body, and an owner who has the same rights without it. Calls name the types of the arguments: exactly one function of a
name can have those types.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

from txnframework.errors import Corrupt, InvalidInput
from txnframework_sql._revisions import Schema, refuse_older, schema_of, upgrade_script
from txnframework_sql.postgresql._connection import PINNED_PATH, SCHEMA, Connection, qualify, quote_schema
from txnframework_sql.postgresql._errors import RetryableConflict
from txnframework_sql.postgresql._payloads import channel_of
from txnframework_sql.schema import VERSION_TABLE

# Several processes may open a new database at the same time. No lock excludes them that any login could hold: a process
# that creates a table or a function of the same name second waits for the first one, then fails, and looks again.
_ATTEMPTS_MAX = 8
# Read from the catalog tables: to_regproc may return a result that was cached before the wait for the lock. Trusted
# owners are the owner of the tables, this user, and superusers.
_FOUND = """
SELECT f.proname, oidvectortypes(f.proargtypes), f.prosrc, r.rolname,
    r.rolsuper OR f.proowner = (SELECT oid FROM pg_roles WHERE rolname = current_user) OR f.proowner = (
        SELECT t.relowner FROM pg_class t WHERE t.relnamespace = n.oid AND t.relname = $3
    ) AS is_trusted
FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace JOIN pg_roles r ON r.oid = f.proowner
WHERE n.nspname = $1 AND f.proname = ANY ($2)
"""
_LOCK_TABLES = f"LOCK TABLE {SCHEMA}.{VERSION_TABLE} IN SHARE ROW EXCLUSIVE MODE"
_ARGUMENTS = re.compile(r"CREATE FUNCTION [\w.{}]+\((.*?)\) RETURNS", re.DOTALL)
_BODY = re.compile(r"AS (\$\w+\$)(.*?)\1", re.DOTALL)


def _part(pattern: re.Pattern[str], text: str, group: int) -> str:
    found = pattern.search(text)
    assert found is not None, f"{pattern.pattern} is not in {text[:80]!r}"
    return found[group]


class Function:
    """
    A function of the database; ``call`` is the statement that calls it, ``applied`` the call within a statement.

    ``used``: the functions that it calls, by their titles. Their digests are part of its own.
    """

    def __init__(self, title: str, **used: Function) -> None:
        source = (files(__package__) / "functions" / f"{title}.sql").read_text(encoding="utf-8")
        for other, function in used.items():
            source = source.replace(f"{{{other}}}", function.name)
        self.name: Final[str] = f"txnframework_{title}_{sha256(source.encode()).hexdigest()[:12]}"
        self.text: Final = source.replace("{name}", self.name)
        self.types: Final = tuple(argument.split()[1] for argument in _part(_ARGUMENTS, self.text, 1).split(","))
        placeholders = ", ".join(f"${number}::{kind}" for number, kind in enumerate(self.types, 1))
        self.applied: Final = f"{SCHEMA}.{self.name}({placeholders})"
        self.call: Final = f"SELECT * FROM {self.applied}"  # noqa: S608 - a name of our own

    def body(self, schema: str) -> str:
        """Return the text that the server stores as its body; ``schema`` is quoted."""
        return qualify(_part(_BODY, self.text, 2), schema)


class _StoredFunction(NamedTuple):
    """A function in the database with one of the names; ``types`` are those of its arguments, as text."""

    name: str
    types: str
    body: str
    owner: str
    is_trusted: bool


APPEND_ENTRIES = Function("append_entries")
APPEND_TO_LEDGERS = Function("append_to_ledgers")
APPLY_STEPS = Function("apply_steps")
READ_ENTRIES = Function("read_entries")

FUNCTIONS = (APPEND_ENTRIES, APPEND_TO_LEDGERS, APPLY_STEPS, READ_ENTRIES)


async def ensure_functions(connection: Connection, shown_url: str) -> None:
    """
    Create the missing functions of this release; the tables must exist.

    :raises InvalidInput: another login has created a function of such a name, or changed its body.
    """

    async def create() -> None:
        missing = await _missing(connection, shown_url)
        if missing:
            async with connection.transaction():
                for function in missing:
                    await connection.script(function.text)

    await _until_alone(create)


async def _until_alone(create: Callable[[], Awaitable[None]]) -> None:
    """Create what is missing; look again if another process has created it meanwhile."""
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        try:
            await create()
        except RetryableConflict as error:
            if attempt == _ATTEMPTS_MAX:
                raise error.final_error from error
        else:
            return


async def _missing(connection: Connection, shown_url: str) -> list[Function]:
    """Return the missing functions; raise InvalidInput if an existing one must not be called."""
    names = [function.name for function in FUNCTIONS]
    rows = await connection.read(_FOUND, connection.schema, names, VERSION_TABLE)
    stored = [_StoredFunction(*row) for row in rows]
    schema = quote_schema(connection.schema, shown_url)
    for function in FUNCTIONS:
        _require_own(function, [found for found in stored if found.name == function.name], schema, shown_url)
    existing = {found.name for found in stored}
    return [function for function in FUNCTIONS if function.name not in existing]


def _require_own(function: Function, stored: Iterable[_StoredFunction], schema: str, shown_url: str) -> None:
    for found in stored:
        shown = f"{shown_url}: function {schema}.{found.name}({found.types})"
        if not found.is_trusted:
            raise InvalidInput(
                f"{shown} belongs to {found.owner!r}, who does not own the tables, and is not called; drop it, and"
                f" revoke from {found.owner!r} the right to create in schema {schema}"
            )
        if found.body != function.body(schema) or found.types != ", ".join(function.types):
            raise InvalidInput(
                f"{shown} is not the function of this release, and is not called; drop it, then open the database"
                " again, which creates it"
            )


# Read from the catalog: to_regclass may return a result that was cached before the wait for the lock. Both in one
# statement: another process may create the tables between two.
_TABLES = """
SELECT count(*) FILTER (WHERE tablename = $2) > 0, count(*) > 0 FROM pg_catalog.pg_tables WHERE schemaname = $1
"""
_REVISION = f"SELECT version_num FROM {SCHEMA}.{VERSION_TABLE}"  # noqa: S608 - a name of our own
_ADD_IDENTITY = f"INSERT INTO {SCHEMA}.store (name, value) VALUES ('identity', $1)"  # noqa: S608 - a name of our own
_TOKEN = f"SELECT value FROM {SCHEMA}.store WHERE name = 'channel'"  # noqa: S608 - a name of our own


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
    found, has_tables = await _stored_revision(connection)
    return schema_of(found, has_tables, shown_url)


async def stored_revision(connection: Connection) -> str | None:
    """Return the revision stored in the database."""
    found, _ = await _stored_revision(connection)
    return found


async def _stored_revision(connection: Connection) -> tuple[str | None, bool]:
    """Return the revision stored in the database, and whether the schema has any tables."""
    ((has_revision, has_tables),) = await connection.read(_TABLES, connection.schema, VERSION_TABLE)
    found = await connection.read(_REVISION) if has_revision else ()
    return (str(found[0][0]) if found else None), has_tables


async def upgrade(connection: Connection, new_identity: str, shown_url: str) -> None:
    """
    Upgrade the database to the schema of this release, in one transaction.

    The release's functions are created as well, so that a user who may only read and write rows finds them.

    :param new_identity: the identity of a store that this call creates.
    """
    await _until_alone(lambda: _upgrade_tables(connection, new_identity, shown_url))
    await ensure_functions(connection, shown_url)


async def _upgrade_tables(connection: Connection, new_identity: str, shown_url: str) -> None:
    # Rendered before the transaction, which the server would end if it were idle for long.
    revision = await stored_revision(connection)
    script = upgrade_script(revision)
    async with connection.transaction():
        if revision is not None:
            await connection.script(_LOCK_TABLES)
        schema = await found_schema(connection, shown_url)
        if schema is not Schema.CURRENT:
            if (found := await stored_revision(connection)) != revision:
                script = upgrade_script(found)
            # Migrations name no schema; the schema in the search path applies to them.
            await connection.script(
                f"SET LOCAL search_path = {quote_schema(connection.schema, shown_url)}, pg_temp;"
                f"{script};"
                f"SET LOCAL search_path = {PINNED_PATH}"
            )
        if schema is Schema.NONE:
            await connection.change(_ADD_IDENTITY, new_identity)


async def stored_channel(connection: Connection, shown_url: str) -> str:
    """Return the channel on which the changes of the stores in this schema are notified."""
    found = await connection.read(_TOKEN)
    if not found:
        raise Corrupt(f"{shown_url}: the row 'channel' of the table store is missing; restore it from a backup")
    return channel_of(found[0][0], connection.schema)
