"""How a database is created, recognized and refused."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from click.testing import CliRunner
from sqlalchemy import create_engine

from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput, StoreMismatch, UnknownFormat
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.command import sql
from txnframework_sql.schema import REVISION, VERSION_TABLE, metadata

Start = Callable[..., "subprocess.Popen[str]"]


def path_of(url: str) -> Path:
    """Return the file of a URL."""
    return Path(url.removeprefix("sqlite:///"))


async def make(url: str) -> str:
    """Open and close a metadata store; return its identity."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    await store.close()
    return store.identity


def test_several_creators(url: str, start: Start) -> None:
    """Processes that create one store at once all succeed, with the same identity."""
    processes = [start("create", url) for _ in range(4)]
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len(set(said)) == 1


def test_opening_a_current_store_needs_no_alembic(url: str, start: Start) -> None:
    """Alembic is imported only to create or upgrade a database."""
    asyncio.run(make(url))
    said, _ = start("imports", url).communicate(timeout=240)
    assert said.splitlines()[-1] == "False"


def test_migrations_make_the_schema(url: str) -> None:
    """The migrations create the tables that the code uses, with the revision that it names."""
    asyncio.run(make(url))
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == REVISION
    engine.dispose()


def test_later_format_is_refused(url: str) -> None:
    """A database of a later release is refused and not changed."""
    asyncio.run(make(url))
    connection = sqlite3.connect(path_of(url))
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(UnknownFormat) as caught:
        asyncio.run(make(url))
    assert caught.value.version == "9999"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("PRAGMA application_id = 1196444487; CREATE TABLE songs (title TEXT)", "another program.*0x47504b47"),
        ("CREATE TABLE Records (title TEXT)", "name records"),
        ("CREATE VIEW store AS SELECT 1 AS one", "name store"),
        ("CREATE TABLE songs (title TEXT); CREATE INDEX leases_by_session ON songs (title)", "name leases_by_session"),
        ("PRAGMA encoding = 'UTF-16le'; CREATE TABLE songs (title TEXT)", "UTF-16le"),
    ],
)
def test_database_of_another_program_is_refused(url: str, script: str, sentence: str) -> None:
    """A file that another program has marked, or whose tables have names of ours, is refused and not changed."""
    path = made_by_another_program(url, script)
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match=sentence):
        asyncio.run(make(url))
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_database_of_an_application_is_adopted(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The tables of the framework are created beside those of an application, which are left as they are."""
    caplog.set_level("INFO")
    script = "PRAGMA user_version = 7; CREATE TABLE songs (title TEXT); INSERT INTO songs VALUES ('Take Five')"
    path = made_by_another_program(url, script)
    identity = asyncio.run(make(url))
    assert asyncio.run(make(url)) == identity
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT title FROM songs").fetchall() == [("Take Five",)]
        assert connection.execute("PRAGMA user_version").fetchone() == (7,)
    assert sum("were created beside them" in record.getMessage() for record in caplog.records) == 1


def test_adopted_database_of_a_later_release_is_refused(url: str) -> None:
    """A later release of ours is recognized beside the tables of an application too, and its file is not changed."""
    path = made_by_another_program(url, "CREATE TABLE songs (title TEXT)")
    asyncio.run(make(url))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(UnknownFormat):
        asyncio.run(make(url))


def made_by_another_program(url: str, script: str) -> Path:
    """Make the file by another program's statements; return its path."""
    path = path_of(url)
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def test_file_that_is_no_database_is_refused(url: str) -> None:
    """A file of another kind is refused and not changed."""
    path = path_of(url)
    path.parent.mkdir()
    path.write_bytes(b"a letter to a friend, and nothing else" * 100)
    with pytest.raises(InvalidInput, match="not a SQLite database"):
        asyncio.run(make(url))
    assert path.read_bytes().startswith(b"a letter")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///a.db?mode=ro", "has parameters .mode., and a SQLite URL has none"),
        ("mysql://user:secret@host/db", "only SQLite and PostgreSQL"),
        ("no url", "not a database URL"),
    ],
)
def test_url_that_names_no_file(wrong: str, reason: str) -> None:
    """An unusable URL is refused with one sentence, without the password."""
    with pytest.raises(InvalidInput, match=reason) as caught:
        asyncio.run(make(wrong))
    assert "secret" not in str(caught.value)


async def test_ledgers_belong_to_one_metadata_store(url: str) -> None:
    """Ledgers belong to the identity they are first opened with; another one is refused, with both in the error."""
    environment = SystemEnvironment()
    first = await open_ledger_store(url, environment, LedgerOptions(), "one")
    with pytest.raises(StoreMismatch, match=r"one.*two"):
        await open_ledger_store(url, environment, LedgerOptions(), "two")
    store = await open_ledger_store(url, environment, LedgerOptions(), None)
    assert first.identity == store.identity == "one"
    await first.close()
    await store.close()


async def test_ledgers_take_on_the_identity_of_their_file(url: str) -> None:
    """Ledgers opened without an identity belong to the records in the same file."""
    ledgers = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(), None)
    await ledgers.close()
    assert ledgers.identity == await make(url)


def test_upgrade_from_0001(url: str) -> None:
    """A file of an earlier release is refused until the upgrade command was run, which keeps its data."""
    before = asyncio.run(make(url))
    with sqlite3.connect(path_of(url)) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0001'")
        connection.execute("DROP TABLE highest_txn_numbers")
        connection.execute("CREATE TABLE highest_txn_numbers (coordinator INTEGER PRIMARY KEY, number TEXT NOT NULL)")
        connection.execute(f"INSERT INTO highest_txn_numbers VALUES (7, '{41:028x}')")
    connection.close()
    with pytest.raises(InvalidInput, match="txnframework sql upgrade"):
        asyncio.run(make(url))
    result = CliRunner().invoke(sql, ["upgrade", "--url", url], catch_exceptions=False)
    assert f"schema {REVISION} now, 0001 before" in result.output
    assert asyncio.run(make(url)) == before
    with sqlite3.connect(path_of(url)) as connection:
        assert connection.execute("SELECT * FROM highest_txn_numbers").fetchall() == [(7, f"{41:028x}", 0)]
    connection.close()


def test_an_upgrade_can_be_seen_before(url: str) -> None:
    """A dry run shows the revisions and the statements, as text or JSON, and changes nothing."""

    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(sql, [*arguments, "--url", url, "--output", "json"])
        assert done.exit_code == 0, done.output
        (found,) = json.loads(done.stdout)
        return found

    shown = CliRunner().invoke(sql, ["upgrade", "--url", url, "--dry-run"]).stdout
    assert f"schema none, would be {REVISION}" in shown
    assert "CREATE TABLE records" in shown
    before = run("upgrade", "--dry-run")
    assert before["statements"] in shown
    assert [one["revision"] for one in before["changes"]] == ["0001", "0002", REVISION]
    assert (before["schema"], before["upgraded"]) == ("none", False)
    assert not path_of(url).exists()
    assert run("upgrade")["upgraded"]
    after = run("status")
    assert (after["schema"], after["changes"]) == ("current", [])
    assert after["revision"] == after["needed"] == REVISION
    asyncio.run(make(url))
