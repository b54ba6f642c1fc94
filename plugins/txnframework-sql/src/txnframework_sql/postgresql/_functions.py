"""
Functions stored in the database: each is one round trip and one transaction of several statements.

They belong to a release's code and not to the schema. Their names end in a digest of their text. So releases with
different functions use a database side by side, and a corrected function needs no new revision.

Another login may be allowed to create functions beside the tables. So a function is called only if it has the expected
body, and an owner who has the same rights without it. Calls name the types of the arguments: exactly one function of a
name can have those types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

from txnframework.errors import InvalidInput
from txnframework_sql.postgresql._connection import HERE, Connection, qualified, quoted
from txnframework_sql.schema import VERSION_TABLE

# The number of the advisory lock: any number that other programs are unlikely to lock.
_LOCK_NUMBER = 7_291_604_150
# Read from the catalog tables: to_regproc may return what was cached before the wait for the lock. Trusted owners are
# the owner of the tables, this user, and superusers.
_FOUND = """
SELECT f.proname, oidvectortypes(f.proargtypes), f.prosrc, r.rolname,
    r.rolsuper OR f.proowner = (SELECT oid FROM pg_roles WHERE rolname = current_user) OR f.proowner = (
        SELECT t.relowner FROM pg_class t WHERE t.relnamespace = n.oid AND t.relname = $3
    ) AS is_trusted
FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace JOIN pg_roles r ON r.oid = f.proowner
WHERE n.nspname = $1 AND f.proname = ANY ($2)
"""
_LOCK = "SELECT pg_advisory_xact_lock($1)"
_ARGUMENTS = re.compile(r"CREATE FUNCTION [\w.{}]+\((.*?)\) RETURNS", re.DOTALL)
_BODY = re.compile(r"AS (\$\w+\$)(.*?)\1", re.DOTALL)


def _part(pattern: re.Pattern[str], text: str, group: int) -> str:
    found = pattern.search(text)
    assert found is not None, f"{pattern.pattern} is not in {text[:80]!r}"
    return found[group]


class Function:
    """A function of the database; ``call`` is the statement that calls it, ``applied`` the call within a statement."""

    def __init__(self, title: str) -> None:
        source = (files(__package__) / "functions" / f"{title}.sql").read_text(encoding="utf-8")
        self.name: Final = f"txnframework_{title}_{sha256(source.encode()).hexdigest()[:12]}"
        self.text: Final = source.replace("{name}", self.name)
        self.types: Final = tuple(argument.split()[1] for argument in _part(_ARGUMENTS, self.text, 1).split(","))
        placeholders = ", ".join(f"${number}::{kind}" for number, kind in enumerate(self.types, 1))
        self.applied: Final = f"{HERE}.{self.name}({placeholders})"
        self.call: Final = f"SELECT * FROM {self.applied}"  # noqa: S608 - a name of our own

    def body(self, schema: str) -> str:
        """Return the text that the server stores as its body; ``schema`` is quoted."""
        return qualified(_part(_BODY, self.text, 2), schema)


class _Kept(NamedTuple):
    """A function in the database with one of the names; ``types`` are those of its arguments, as text."""

    name: str
    types: str
    body: str
    owner: str
    is_trusted: bool


APPLY_BATCHES = Function("apply_batches")
APPEND_ENTRIES = Function("append_entries")
READ_ENTRIES = Function("read_entries")

_ALL = (APPLY_BATCHES, APPEND_ENTRIES, READ_ENTRIES)


async def ensure_functions(connection: Connection, shown_url: str) -> None:
    """
    Create the missing functions of this release; the tables must exist.

    :raises InvalidInput: another login has created a function of such a name, or changed its body.
    """
    if not await _missing(connection, shown_url):
        return
    async with connection.transaction():
        # If several processes start at once, one of them creates the functions.
        await connection.write(_LOCK, _LOCK_NUMBER)
        for function in await _missing(connection, shown_url):
            await connection.script(function.text)


async def _missing(connection: Connection, shown_url: str) -> list[Function]:
    """Return the missing functions; raise InvalidInput if an existing one must not be called."""
    names = [function.name for function in _ALL]
    rows = await connection.read(_FOUND, connection.schema, names, VERSION_TABLE)
    kept = [_Kept(*row) for row in rows]
    schema = quoted(connection.schema, shown_url)
    for function in _ALL:
        _require_own(function, [one for one in kept if one.name == function.name], schema, shown_url)
    there = {one.name for one in kept}
    return [function for function in _ALL if function.name not in there]


def _require_own(function: Function, kept: Iterable[_Kept], schema: str, shown_url: str) -> None:
    for one in kept:
        shown = f"{shown_url}: function {schema}.{one.name}({one.types})"
        if not one.is_trusted:
            raise InvalidInput(
                f"{shown} belongs to {one.owner!r}, who does not own the tables, and is not called; drop it, and revoke"
                f" from {one.owner!r} the right to create in schema {schema}"
            )
        if one.body != function.body(schema) or one.types != ", ".join(function.types):
            raise InvalidInput(
                f"{shown} is not the function that this release makes, and is not called; drop it, then open the"
                " database again, which makes it anew"
            )
