"""
Databases that tests use one after the other: the data of one test is removed, so the next one finds a new database.

To create a database, its tables and functions, and to drop it, takes many times as long as most tests.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from txnframework_sql.schema import NUMBERS, VERSION_TABLE, counters, metadata, store
from txnframework_sql.testing.servers.databases import drop_database, make_database, rename_database, run

_left: list[str] = []
"""The unused databases; as many as the tests of this process used at once. They are removed with its server."""


@contextmanager
def clean_database() -> Iterator[str]:
    """Take a database for the length of a block; yield its URL."""
    url = take_database()
    try:
        yield url
    finally:
        give_back(url)


def take_database() -> str:
    """
    Return the URL of a database without records and ledgers; the caller must return it with ``give_back``.

    It may also have no tables: stores create them. Its name and its identity are new in either case.
    """
    return _left.pop() if _left else make_database()


def give_back(url: str) -> None:
    """Empty the stores in a database of ``take_database``, even if clients are connected; on failure, drop it."""
    # A client that a test left behind finds no such database when it reconnects.
    renamed = rename_database(url)
    try:
        run(renamed, _EMPTIED.format(identity=f"sql-{secrets.token_hex(8)}", channel=secrets.token_hex(16)))
    except OSError:
        # It has no tables, or unknown ones.
        drop_database(renamed)
    else:
        _left.append(renamed)


_ONLY_OURS = """
DO $$
BEGIN
    ASSERT NOT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'public' AND tablename NOT IN ({ours}));
END $$
"""


def _emptied() -> str:
    # DELETE, because TRUNCATE creates new files, also for each index.
    statements = [_ONLY_OURS.format(ours=", ".join(f"'{name}'" for name in (*metadata.tables, VERSION_TABLE)))]
    statements += [f'DELETE FROM "{table.name}"' for table in metadata.sorted_tables if table is not counters]  # noqa: S608
    statements.append(f"UPDATE {counters.name} SET value = 0")  # noqa: S608 - names of our own
    statements.append(f"INSERT INTO {store.name} VALUES ('channel', '{{channel}}'), ('identity', '{{identity}}')")  # noqa: S608
    statements.append(f"ALTER SEQUENCE {NUMBERS} RESTART")
    statements.append("ALTER SEQUENCE managed_ledgers_id_seq RESTART")
    return "; ".join(statements)


_EMPTIED = _emptied()
