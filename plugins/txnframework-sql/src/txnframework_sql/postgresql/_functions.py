"""
Functions that are kept in the database, because each is one round trip and one transaction of several statements.

They belong to a release's code and not to the schema: their names end in a digest of their text, so releases with
different ones use a database side by side, and a corrected one needs no new revision.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import Final

from txnframework_sql.postgresql._connection import Connection

# The only thing of its kind: any number that nobody else is likely to lock.
_LOCK_NUMBER = 7_291_604_150
# Read from the table: what to_regproc knows may be from before the lock was waited for.
_IS_THERE = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_proc f JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace
    WHERE n.nspname = current_schema() AND f.proname = $1
)
"""
_LOCK = "SELECT pg_advisory_xact_lock($1)"


class Function:
    """A function of the database; ``name`` is to be called."""

    def __init__(self, title: str) -> None:
        source = (files(__package__) / "functions" / f"{title}.sql").read_text(encoding="utf-8")
        self.name: Final = f"txnframework_{title}_{sha256(source.encode()).hexdigest()[:12]}"
        self.text: Final = source.replace("{name}", self.name)

    def call(self, arguments: int) -> str:
        """Return the statement that calls it with so many arguments."""
        placeholders = ", ".join(f"${number + 1}" for number in range(arguments))
        return f"SELECT * FROM {self.name}({placeholders})"  # noqa: S608 - a name of our own


APPLY_BATCHES = Function("apply_batches")
APPEND_ENTRIES = Function("append_entries")
READ_ENTRIES = Function("read_entries")

_ALL = (APPLY_BATCHES, APPEND_ENTRIES, READ_ENTRIES)


async def ensure_functions(connection: Connection) -> None:
    """Make the functions of this release that are not there; the tables are."""
    missing = [function for function in _ALL if not (await connection.read(_IS_THERE, function.name))[0][0]]
    if not missing:
        return
    async with connection.transaction():
        # Of several processes that start at once, one makes them.
        await connection.write(_LOCK, _LOCK_NUMBER)
        for function in missing:
            if not (await connection.read(_IS_THERE, function.name))[0][0]:
                await connection.script(function.text)
