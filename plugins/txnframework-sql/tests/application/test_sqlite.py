"""One COMMIT decides the application's rows and the header in a SQLite file, over every kind of connection."""

from __future__ import annotations

import inspect
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlite_connections import HEADER, INSERT, KINDS, application, ended, run

from txnframework.errors import InvalidInput, VersionMismatch
from txnframework.model import Expect, IndexRange, Key, Put

OTHER = Key("/other", "o")
ALL = (b"", b"\xff")
OF_SQLALCHEMY = pytest.mark.parametrize("name", ["Session", "Connection", "AsyncSession", "AsyncConnection"])


async def test_both_are_committed(tmp_path: Path, kind: Any) -> None:
    """Before the COMMIT, nothing of it is visible; after it, row, header and index entries exist."""
    async with application(tmp_path) as mine, kind(mine.path) as opened:
        version = await mine.begun()
        watch = await mine.store.watch(HEADER)
        joined = await mine.store.join(opened.given)
        await mine.store.put(Put(OTHER, b"a message", Expect.ABSENT))
        await opened.run(INSERT)
        written = await mine.end(joined, version)
        assert (mine.rows(), await mine.state()) == (0, b"open")
        await joined.commit()
        await watch.changed()
        record = await mine.store.get(HEADER)
        assert record is not None
        assert (record.value, record.version, mine.rows()) == (b"committed", written, 1)
        page = await mine.store.scan_index(IndexRange("state", *ALL), 9)
        assert [one.key for one in page.records] == [HEADER]
        assert not (await mine.store.scan_index(IndexRange("deadline", *ALL), 9)).records
        await joined.rollback()
        # The write lock is free again.
        await mine.store.put(Put(OTHER, b"another", Expect.ANY))


async def test_nothing_is_committed(tmp_path: Path, kind: Any) -> None:
    """
    A rollback undoes both and may be repeated. A put of an outdated version writes nothing.

    The connection is usable afterwards.
    """
    async with application(tmp_path) as mine, kind(mine.path) as opened:
        version = await mine.begun()
        for _ in range(2):
            joined = await mine.store.join(opened.given)
            await opened.run(INSERT)
            await mine.end(joined, version)
            await joined.rollback()
            await joined.rollback()
        assert (mine.rows(), await mine.state()) == (0, b"open")
        joined = await mine.store.join(opened.given)
        aborted = await mine.store.put(ended(version))
        with pytest.raises(VersionMismatch) as raised:
            await mine.end(joined, version)
        assert raised.value.actual == aborted
        await joined.rollback()
        assert mine.rows() == 0


def test_an_old_library_is_named_once(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection of the application that joins does not take the lock of the stores' connections."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 2))

    async def test() -> None:
        async with application(tmp_path) as mine, kind(mine.path) as opened:
            await mine.begun()
            for _ in range(2):
                joined = await mine.store.join(opened.given)
                await joined.rollback()

    run(test)
    (warning,) = [one for one in caplog.messages if "can damage the file" in one]
    assert "SQLite 3.51.2" in warning


async def test_without_own_rows(tmp_path: Path, kind: Any) -> None:
    """A block may write messages only."""
    async with application(tmp_path) as mine, kind(mine.path) as opened:
        version = await mine.begun()
        joined = await mine.store.join(opened.given)
        await mine.end(joined, version)
        await joined.commit()
        assert await mine.state() == b"committed"


async def test_ended_inside_the_block(tmp_path: Path, kind: Any) -> None:
    """A transaction that the application has committed itself is not joined any more."""
    async with application(tmp_path) as mine, kind(mine.path) as opened:
        version = await mine.begun()
        joined = await mine.store.join(opened.given)
        await opened.run(INSERT)
        await opened.commit()
        with pytest.raises(InvalidInput, match="inside the block"):
            await mine.end(joined, version)
        await joined.rollback()
        assert await mine.state() == b"open"


async def test_ended_inside_the_block_and_begun_again(tmp_path: Path, kind: Any) -> None:
    """The application's next transaction is separate: it is neither committed nor rolled back."""
    async with application(tmp_path) as mine, kind(mine.path) as opened:
        version = await mine.begun()
        joined = await mine.store.join(opened.given)
        await opened.run(INSERT)
        await opened.commit()
        await opened.run(INSERT)
        with pytest.raises(InvalidInput, match="inside the block"):
            await mine.end(joined, version)
        await joined.rollback()
        await opened.commit()
        assert (mine.rows(), await mine.state()) == (2, b"open")


@OF_SQLALCHEMY
async def test_savepoints_of_sqlalchemy(tmp_path: Path, name: str) -> None:
    """An open savepoint is refused, and a rolled-back one is not."""
    async with application(tmp_path) as mine, KINDS[name](mine.path) as opened:
        version = await mine.begun()
        joined = await mine.store.join(opened.given)
        await opened.run(INSERT)
        nested = opened.given.begin_nested()
        nested = await nested if inspect.isawaitable(nested) else nested
        await opened.run(INSERT)
        with pytest.raises(InvalidInput, match="open savepoint"):
            await mine.end(joined, version)
        undone = nested.rollback()
        if inspect.isawaitable(undone):
            await undone
        await mine.end(joined, version)
        await joined.commit()
        assert (mine.rows(), await mine.state()) == (1, b"committed")


@pytest.mark.parametrize(
    "statements",
    [
        ("SAVEPOINT part", INSERT, "RELEASE part"),
        ("WITH one AS (SELECT 'row' AS text) INSERT INTO mine (text) SELECT text FROM one",),
        ("/* a comment */ -- and another\n SAVEPOINT part", INSERT, "ROLLBACK TO part", INSERT, "RELEASE part"),
    ],
)
async def test_what_the_driver_would_commit_by_itself(tmp_path: Path, kind: Any, statements: tuple[str, ...]) -> None:
    """Python's driver begins no transaction before these statements; a block undoes them as well."""
    async with application(tmp_path) as mine, kind(mine.path) as opened:
        version = await mine.begun()
        for number in range(2):
            joined = await mine.store.join(opened.given)
            for statement in statements:
                await opened.run(statement)
            assert mine.rows() == 0
            if number == 0:
                await joined.rollback()
                assert (mine.rows(), await mine.state()) == (0, b"open")
        await mine.end(joined, version)
        await joined.commit()
        assert (mine.rows(), await mine.state()) == (1, b"committed")


def write_elsewhere(path: Path) -> None:
    """Write a row over another connection, which does not wait for a lock."""
    other = sqlite3.connect(path, timeout=0)
    try:
        with other:
            other.execute(INSERT)
    finally:
        other.close()


@pytest.mark.parametrize("name", ["sqlite3", "sqlite3-autocommit"])
async def test_a_read_is_part_of_the_transaction(tmp_path: Path, name: str) -> None:
    """With the module sqlite3: a row cannot be written if another connection has written since the read."""
    async with application(tmp_path) as mine, KINDS[name](mine.path) as opened:
        joined = await mine.store.join(opened.given)
        await opened.run("SELECT * FROM mine")
        write_elsewhere(mine.path)
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            await opened.run(INSERT)
        await joined.rollback()


@OF_SQLALCHEMY
async def test_a_read_of_sqlalchemy_is_not(tmp_path: Path, name: str) -> None:
    """With SQLAlchemy, nothing shows that another connection has written since the read, as the documentation says."""
    async with application(tmp_path) as mine, KINDS[name](mine.path) as opened:
        version = await mine.begun()
        joined = await mine.store.join(opened.given)
        await opened.run("SELECT * FROM mine")
        write_elsewhere(mine.path)
        await opened.run(INSERT)
        await mine.end(joined, version)
        await joined.commit()
        assert mine.rows() == 2


@OF_SQLALCHEMY
async def test_begin_immediate(tmp_path: Path, name: str) -> None:
    """After BEGIN IMMEDIATE no other connection can write, so the application's reads remain valid at its COMMIT."""
    async with application(tmp_path) as mine, KINDS[name](mine.path) as opened:
        version = await mine.begun()
        joined = await mine.store.join(opened.given)
        await opened.run("BEGIN IMMEDIATE")
        await opened.run("SELECT * FROM mine")
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            write_elsewhere(mine.path)
        await opened.run(INSERT)
        await mine.end(joined, version)
        await joined.commit()
        assert (mine.rows(), await mine.state()) == (1, b"committed")


async def test_rolled_back_between_the_put_and_the_commit(tmp_path: Path, kind: Any) -> None:
    """A savepoint from before the block may take back the put; the COMMIT is then refused."""
    async with application(tmp_path) as mine, kind(mine.path) as opened:
        version = await mine.begun()
        for statement in ("BEGIN", INSERT, "SAVEPOINT part"):
            await opened.run(statement)
        joined = await mine.store.join(opened.given)
        await mine.end(joined, version)
        await opened.run("ROLLBACK TO part")
        with pytest.raises(InvalidInput, match="while the block ended"):
            await joined.commit()
        await joined.rollback()
        assert (mine.rows(), await mine.state()) == (0, b"open")


async def test_a_driver_that_is_not_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of such a driver would not show whether a COMMIT was carried out, so it is refused at the start of
    the block.
    """
    engine = create_engine(f"sqlite:///{tmp_path / 'txn.db'}")
    async with application(tmp_path) as mine:
        await mine.begun()
        with engine.connect() as connection:
            monkeypatch.setattr(connection.dialect, "driver", "psycopg2")
            with pytest.raises(InvalidInput, match="uses the driver psycopg2; use asyncpg or psycopg"):
                await mine.store.join(connection)
    engine.dispose()


async def test_a_send_after_an_own_row(tmp_path: Path, kind: Any) -> None:
    """A send that would wait for the lock until its timeout is refused at once; before the first row it is allowed."""
    async with application(tmp_path) as mine, kind(mine.path) as opened:
        await mine.begun()
        joined = await mine.store.join(opened.given)
        assert joined.store_waits is None
        await opened.run(INSERT)
        assert "before the first own row is written" in str(joined.store_waits)
        await joined.rollback()


async def test_a_transaction_that_was_open_before(tmp_path: Path) -> None:
    """The join finds out whether the transaction holds the lock; rows from before the block belong to it."""
    async with application(tmp_path) as mine, KINDS["sqlite3"](mine.path) as opened:
        version = await mine.begun()
        await opened.run("BEGIN")
        joined = await mine.store.join(opened.given)
        assert joined.store_waits is None
        await joined.rollback()
        await opened.run(INSERT)
        joined = await mine.store.join(opened.given)
        assert "before the first own row is written" in str(joined.store_waits)
        await mine.end(joined, version)
        await joined.commit()
        assert (mine.rows(), await mine.state()) == (1, b"committed")


async def test_refused_connections(tmp_path: Path) -> None:
    """Another file, a file that was replaced, an attached one, and a weaker durability are refused in one sentence."""
    async with application(tmp_path) as mine:
        await mine.begun()

        async def refused(connection: Any, sentence: str) -> None:
            with pytest.raises(InvalidInput, match=sentence):
                await mine.store.join(connection)

        other = sqlite3.connect(tmp_path / "other.db")
        await refused(other, "not connected to the file of the metadata store")
        other.execute(f"ATTACH '{mine.path}' AS framework")
        await refused(other, "does not commit two files together")
        other.close()
        weak = sqlite3.connect(mine.path)
        weak.execute("PRAGMA synchronous = NORMAL")
        await refused(weak, "PRAGMA synchronous = FULL")
        weak.close()
        await refused(weak, "pass an open one")
        engine = create_engine(f"sqlite:///{mine.path}")
        await refused(engine, "engine.connect")
        await refused(str(mine.path), "is no connection")
        engine.dispose()


async def test_a_file_of_another_store(tmp_path: Path) -> None:
    """A copy of the file is another one, although it contains the same header."""
    async with application(tmp_path) as mine:
        await mine.begun()
        copy = sqlite3.connect(tmp_path / "copy.db")
        original = sqlite3.connect(mine.path)
        original.backup(copy)
        with pytest.raises(InvalidInput, match="not connected to the file"):
            await mine.store.join(copy)
        original.close()
        copy.close()


async def test_an_outdated_view(tmp_path: Path) -> None:
    """A transaction that has read before the block began does not see the header, and cannot end it."""
    async with application(tmp_path) as mine, KINDS["sqlite3"](mine.path) as opened:
        await opened.run("BEGIN")
        await opened.run("SELECT * FROM mine")
        version = await mine.begun()
        joined = await mine.store.join(opened.given)
        with pytest.raises(InvalidInput, match="before the first statement"):
            await mine.end(joined, version)
        await joined.rollback()
        assert await mine.state() == b"open"


async def test_a_deferred_constraint(tmp_path: Path) -> None:
    """A COMMIT that a constraint refuses is the driver's error, and undoes both."""
    async with application(tmp_path) as mine, KINDS["sqlite3"](mine.path) as opened:
        await opened.run("PRAGMA foreign_keys = ON")
        await opened.run("CREATE TABLE parts (of INTEGER REFERENCES mine (id) DEFERRABLE INITIALLY DEFERRED)")
        version = await mine.begun()
        joined = await mine.store.join(opened.given)
        await opened.run("INSERT INTO parts VALUES (7)")
        await mine.end(joined, version)
        with pytest.raises(sqlite3.IntegrityError):
            await joined.commit()
        await joined.rollback()
        assert await mine.state() == b"open"
