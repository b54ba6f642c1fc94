"""How a PostgreSQL database is created, recognized, upgraded and refused, and which ledgers belong to which records."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest
from click.testing import CliRunner

import txnframework_sql.migrations
from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput, StoreMismatch, UnknownFormat
from txnframework.model import Append, Expect, Key, Put
from txnframework_sql import LedgerOptions, _revisions, open_ledger_store
from txnframework_sql import command as sql_command
from txnframework_sql.schema import REVISION, VERSION_TABLE

if TYPE_CHECKING:
    from conftest import Stores

Start = Callable[..., "subprocess.Popen[str]"]

LATER = "0004"
LATER_REVISION = '''
"""A column with a default, some rows, and a percent sign."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("records", sa.Column("shown", sa.Text(), server_default="100%", nullable=False))
    op.execute("UPDATE records SET shown = path || '%' WHERE path LIKE '/k%'")
'''
TABLES = "SELECT array_agg(tablename::text ORDER BY tablename) FROM pg_tables WHERE schemaname = current_schema()"


async def ask(stores: Stores, statement: str) -> object:
    """Execute a statement without the stores; return the first value that it finds."""
    raw = await asyncpg.connect(stores.url)
    try:
        return await raw.fetchval(statement)
    finally:
        await raw.close()


async def identity(stores: Stores) -> str:
    """Open the records and close them; return their identity."""
    async with stores.metadata() as store:
        return store.identity


def said(stores: Stores, command: str) -> str:
    """Run ``txnframework sql``; return its only line, without the URL."""
    result = CliRunner().invoke(sql_command.sql, [command, "--url", stores.url], catch_exceptions=False)
    assert result.exit_code == 0
    (line,) = result.output.splitlines()
    return line.partition(f"/{stores.database}: ")[2]


def test_several_processes_make_one_database(stores: Stores, start: Start) -> None:
    """Processes that open an empty database at once all succeed, with the same identity."""
    processes = [start("create", stores.url) for _ in range(4)]
    answers = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len(set(answers)) == 1


async def test_database_of_another_program_is_refused(stores: Stores) -> None:
    """A database with other tables is refused, for records and for ledgers, and not changed."""
    await ask(stores, "CREATE TABLE songs (title text)")
    for opened in (stores.metadata(), stores.ledgers()):
        with pytest.raises(InvalidInput, match="another program"):
            async with opened:
                pass
    assert await ask(stores, TABLES) == ["songs"]


async def test_later_schema_is_refused(stores: Stores) -> None:
    """A database of a later release is refused, for records and for ledgers, with its revision."""
    await identity(stores)
    await ask(stores, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    for opened in (stores.metadata(), stores.ledgers()):
        with pytest.raises(UnknownFormat) as caught:
            async with opened:
                pass
        assert caught.value.version == "9999"
    assert await ask(stores, f"SELECT version_num FROM {VERSION_TABLE}") == "9999"


@pytest.fixture
def later_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Simulate a later release, which has one more revision with the given text."""

    def become(revision: str) -> None:
        (there,) = txnframework_sql.migrations.__path__
        here = tmp_path / "migrations"
        shutil.copytree(there, here)
        (here / "versions" / f"{LATER}_later.py").write_text(revision)
        config = _revisions._config

        def configured() -> object:
            found = config()
            found.set_main_option("script_location", str(here))
            return found

        monkeypatch.setattr(_revisions, "_config", configured)
        for module in (_revisions, sql_command):
            monkeypatch.setattr(module, "REVISION", LATER)

    return become


def test_upgrade_of_an_earlier_schema(stores: Stores, later_release: Callable[[str], None]) -> None:
    """A database of an earlier release is refused until the upgrade command was run, which keeps its data."""
    key = Key("/kept")

    async def fill() -> str:
        async with stores.metadata() as store:
            await store.put(Put(key, b"1", Expect.ABSENT))
            return store.identity

    async def refused() -> None:
        for opened in (stores.metadata(), stores.ledgers()):
            with pytest.raises(InvalidInput, match="txnframework sql upgrade"):
                async with opened:
                    pass

    async def kept() -> None:
        async with stores.metadata() as store:
            assert store.identity == before
            record = await store.get(key)
            assert record is not None
            assert record.value == b"1"
        assert await ask(stores, "SELECT shown FROM records") == "/kept%"

    before = stores.run(fill)
    later_release(LATER_REVISION)
    stores.run(refused)
    assert "earlier release" in said(stores, "status")
    assert said(stores, "upgrade") == f"schema {LATER} now, {REVISION} before"
    stores.run(kept)
    assert said(stores, "upgrade") == f"schema {LATER}, already up to date"


def test_upgrade_that_fails_changes_nothing(stores: Stores, later_release: Callable[[str], None]) -> None:
    """An upgrade whose last statement fails leaves the schema of the earlier release."""

    async def left() -> None:
        assert await ask(stores, f"SELECT version_num FROM {VERSION_TABLE}") == REVISION
        assert await ask(stores, "SELECT count(*) FROM pg_attribute WHERE attname = 'shown'") == 0

    stores.run(lambda: identity(stores))
    later_release(LATER_REVISION + "    op.execute('SELECT 1 / 0')\n")
    with pytest.raises(Exception, match="division by zero"):
        said(stores, "upgrade")
    stores.run(left)


async def test_ledgers_in_another_database(stores: Stores, other_stores: Stores) -> None:
    """Ledgers belong to the records, in another database, for which they were first opened, and to no others."""
    own, others = await identity(stores), await identity(other_stores)
    environment = SystemEnvironment()
    ledgers = await open_ledger_store(stores.url, environment, LedgerOptions(), others)
    await (await ledgers.create("a")).append((Append(b"x"),), None)
    await ledgers.close()
    # Those in the same database are others as well.
    for wrong in (own, "sql-0000000000000000"):
        with pytest.raises(StoreMismatch, match=rf"{others}.*{wrong}") as caught:
            await open_ledger_store(stores.url, environment, LedgerOptions(), wrong)
        assert str(urlsplit(stores.url).password) not in str(caught.value)
    again = await open_ledger_store(stores.url, environment, LedgerOptions(), others)
    assert await again.list_names("", "", 9) == ("a",)
    await again.close()
    assert await identity(stores) == own


# Of a release that believed what is notified.
OLD_FUNCTION = "txnframework_append_entries_0123456789ab"
AS_OF_0001 = f"""
DELETE FROM store WHERE name = 'channel';
UPDATE {VERSION_TABLE} SET version_num = '0001';
ALTER TABLE highest_txn_numbers DROP COLUMN managed_id, ADD PRIMARY KEY (coordinator);
INSERT INTO highest_txn_numbers (coordinator, number) VALUES (7, '{41:028x}');
CREATE FUNCTION {OLD_FUNCTION}(a bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION {OLD_FUNCTION}_of_others(a bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1';
"""


def test_upgrade_from_0001(stores: Stores) -> None:
    """A database of the first schema is refused, then upgraded: it gets a channel, and loses the old functions."""
    functions = f"SELECT count(*) FROM pg_proc WHERE proname LIKE '{OLD_FUNCTION}%'"

    async def age() -> str:
        async with stores.metadata() as store:
            await store.put(Put(Key("/kept"), b"1", Expect.ABSENT))
        raw = await asyncpg.connect(stores.url)
        await raw.execute(AS_OF_0001)
        await raw.close()
        assert await ask(stores, functions) == 2
        with pytest.raises(InvalidInput, match="txnframework sql upgrade"):
            await identity(stores)
        return store.identity

    async def kept() -> None:
        async with stores.metadata() as store:
            assert store.identity == before
            assert await store.get(Key("/kept")) is not None
        assert await ask(stores, functions) == 1
        assert await ask(stores, "SELECT length(value) FROM store WHERE name = 'channel'") == 32
        async with stores.ledgers() as store:
            assert await store.highest_txn_numbers() == {7: 41}

    before = stores.run(age)
    assert said(stores, "upgrade") == f"schema {REVISION} now, 0001 before"
    stores.run(kept)


async def test_channels_of_two_schemas(stores: Stores) -> None:
    """Two installations in one database have two channels, even if one is a copy of the other."""
    found = []
    for schema in ("one", "two"):
        await ask(stores, f"CREATE SCHEMA {schema}")
        async with stores.metadata(f"{stores.url}?options=-csearch_path%3D{schema}") as store:
            found.append(store.database.pool.channel)  # type: ignore[attr-defined]
    await ask(
        stores,
        "UPDATE two.store SET value = (SELECT value FROM one.store WHERE name = 'channel') WHERE name = 'channel'",
    )
    async with stores.metadata(f"{stores.url}?options=-csearch_path%3Dtwo") as store:
        found.append(store.database.pool.channel)  # type: ignore[attr-defined]
    assert len(set(found)) == 3


async def test_no_schema_to_be_in(stores: Stores) -> None:
    """
    A search_path without an existing schema, and a schema name that cannot be quoted, are refused with the remedy.
    """
    await ask(stores, 'CREATE SCHEMA "it\'s"')
    for path, expected in (("nowhere", "CREATE SCHEMA"), ("%22it's%22", "rename it")):
        with pytest.raises(InvalidInput, match=expected):
            async with stores.metadata(f"{stores.url}?options=-csearch_path%3D{path}"):
                pass
