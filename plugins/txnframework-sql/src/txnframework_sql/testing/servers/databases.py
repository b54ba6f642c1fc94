"""
Databases for tests, on a server that they share.

``fresh_database`` creates a database, which takes a twentieth of a second. ``clean_database`` takes one that an earlier
test used, and that was emptied after it. Creating a database with its tables and functions takes many times as long as
most tests.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from txnframework_sql.schema import NUMBERS, VERSION_TABLE, counters, metadata, store
from txnframework_sql.testing.servers.postgresql import PostgresServer, programs, run_sql

URL_VARIABLE = "TXN_TEST_POSTGRESQL_URL"
"""The environment variable that names a server to test with, as ``postgresql://user:password@host:port/database``."""


def shared_url() -> str:
    """
    Return the administrator's URL of the server that this test run shares.

    TXN_TEST_POSTGRESQL_URL names the server. Without it, the first call starts one, which is removed when the process
    ends.
    """
    return os.environ.get(URL_VARIABLE) or _shared_server().url


@contextmanager
def fresh_database() -> Iterator[str]:
    """Create a database on the shared server for the length of a block; yield its URL."""
    url = make_database()
    try:
        yield url
    finally:
        drop_database(url)


def make_database() -> str:
    """Create an empty database on the shared server, and return its URL; ``drop_database`` drops it."""
    name = _new_name()
    run_sql(_psql(), shared_url(), f'CREATE DATABASE "{name}"')
    return _url_of(name)


def rename_database(url: str) -> str:
    """Rename a database of ``make_database``, even if clients are connected; return its URL."""
    old, new = urlsplit(url).path[1:], _new_name()
    run_sql(_psql(), shared_url(), _DISCONNECT.format(name=old), f'ALTER DATABASE "{old}" RENAME TO "{new}"')
    return _url_of(new)


# The server itself also waits for ending connections, but checks only every tenth of a second.
_DISCONNECT = """
DO $$
BEGIN
    LOOP
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}';
        EXIT WHEN NOT FOUND;
        PERFORM pg_sleep(0.001);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
END $$
"""


def run(url: str, statement: str) -> str:
    """Run SQL in a database of ``make_database``; several statements form one transaction."""
    return run_sql(_psql(), url, statement)


def drop_database(url: str) -> None:
    """Drop a database of ``make_database``, even if clients are connected."""
    run_sql(_psql(), shared_url(), f'DROP DATABASE IF EXISTS "{urlsplit(url).path[1:]}" WITH (FORCE)')


def _new_name() -> str:
    return f"txn_test_{os.getpid()}_{secrets.token_hex(8)}"


def _url_of(name: str) -> str:
    return urlunsplit(urlsplit(shared_url())._replace(path=f"/{name}"))


@cache
def _shared_server() -> PostgresServer:
    server = PostgresServer()
    atexit.register(_remove, server, os.getpid())
    server.start()
    return server


def _remove(server: PostgresServer, owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked from the owner
        server.remove()


@cache
def _psql() -> Path:
    if not os.environ.get(URL_VARIABLE):
        return programs(_shared_server().directory) / "psql"
    found = shutil.which("psql")
    return Path(found) if found else programs(Path(tempfile.gettempdir())) / "psql"


_left: list[str] = []
"""The unused databases; as many as the tests of this process used concurrently. They are removed with its server."""


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
