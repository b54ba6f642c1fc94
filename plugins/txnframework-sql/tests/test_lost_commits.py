"""The results of reads after a disk error stay valid."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import text

from txnframework.environment import SystemEnvironment
from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.model import Expect, Key, Put, Record
from txnframework_sql import MetadataOptions, SqlMetadataStore, open_metadata_store
from txnframework_sql.sqlite._connection import Pause, SqliteConnection, log_bytes
from txnframework_sql.steps.records import get_record
from txnframework_sql.steps.statements import Steps, rows

KEY = Key("/a")
# What says how far the log goes: both copies of its index's header, and where checkpoints are.
INDEX_HEADER_BYTES = 136


class FailingSync(SqliteConnection):
    """
    A connection whose commit leaves the state that SQLite leaves when the sync of its log fails.

    The pages are in the log, but not in the log's index.
    """

    fails = False
    cannot_write = False

    def commit(self) -> None:
        """Commit, and restore the earlier index."""
        if not self.fails:
            super().commit()
            return
        type(self).fails = False
        # Closing a file of SQLite's drops the locks that this process has on it; no other process is there.
        index = os.open(f"{self.sqlalchemy_connection.engine.url.database}-shm", os.O_RDWR)
        before = os.pread(index, INDEX_HEADER_BYTES, 0)
        super().commit()
        os.pwrite(index, before, 0)
        os.close(index)
        raise sqlite3.OperationalError("disk I/O error")

    def begin_write(self, pause: Pause = time.sleep) -> None:
        """Begin, unless the disk is full."""
        if self.cannot_write:
            raise sqlite3.OperationalError("database or disk is full")
        super().begin_write(pause)


async def opened(url: str, kind: type[SqliteConnection] = SqliteConnection) -> SqlMetadataStore:
    """Open the records."""
    return await open_metadata_store(url, SystemEnvironment(), MetadataOptions(), kind)


async def after_a_crash(url: str, directory: Path) -> Record | None:
    """Return the record as found after a kill of every process at this moment."""
    store = await opened(copy_without_index(url, directory))
    try:
        return await store.get(KEY)
    finally:
        await store.close()


def copy_without_index(url: str, directory: Path) -> str:
    """Copy the file and its log; return the copy's URL."""
    path = Path(url.removeprefix("sqlite:///"))
    directory.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", directory / f"{path.name}{suffix}")
    return f"sqlite:///{directory / path.name}"


async def test_lost_commit_is_decided_before_it_is_read(url: str, tmp_path: Path) -> None:
    """The result of a read after a commit of unknown outcome survives every crash."""

    class Kind(FailingSync):
        pass

    store = await opened(url, Kind)
    Kind.fails = True
    with pytest.raises(OutcomeUnknown):
        await store.put(Put(KEY, b"", Expect.ABSENT))
    found = await store.get(KEY)
    assert await after_a_crash(url, tmp_path / "crashed") == found
    await store.close()


async def test_user_version_is_left_to_the_application(url: str) -> None:
    """What decides a lost commit changes no field of the file that an application may use."""

    class Kind(FailingSync):
        pass

    store = await opened(url, Kind)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as application:
        application.execute("PRAGMA user_version = 7")
        Kind.fails = True
        with pytest.raises(OutcomeUnknown):
            await store.put(Put(KEY, b"", Expect.ABSENT))
        await store.get(KEY)
        assert application.execute("PRAGMA user_version").fetchone() == (7,)
    await store.close()


async def test_lost_commit_that_cannot_be_decided(url: str, tmp_path: Path) -> None:
    """While no write is possible after a lost commit, reads fail as well; both recover by themselves."""

    class Kind(FailingSync):
        def commit(self) -> None:
            Kind.cannot_write = Kind.fails
            super().commit()

    store = await opened(url, Kind)
    Kind.fails = True
    with pytest.raises(OutcomeUnknown):
        await store.put(Put(KEY, b"", Expect.ABSENT))
    assert await after_a_crash(url, tmp_path / "undecided") is not None
    with pytest.raises(Unavailable):
        await store.get(KEY)
    with pytest.raises(Unavailable):
        await store.put(Put(KEY, b"", Expect.ABSENT))
    Kind.cannot_write = False
    found = await store.get(KEY)
    assert await after_a_crash(url, tmp_path / "decided") == found
    await store.close()


async def test_a_full_disk_is_no_lost_commit(url: str) -> None:
    """A commit that does not fit on the disk did not take effect, and reads go on although no write is possible."""

    class Kind(FailingSync):
        def commit(self) -> None:
            if self.cannot_write:
                self.rollback()
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            super().commit()

        def begin_write(self, pause: Pause = time.sleep) -> None:
            SqliteConnection.begin_write(self, pause)

    store = await opened(url, Kind)
    Kind.cannot_write = True
    for _ in range(2):
        with pytest.raises(Unavailable, match="no disk space"):
            await store.put(Put(KEY, b"", Expect.ABSENT))
        assert await store.get(KEY) is None
    Kind.cannot_write = False
    await store.put(Put(KEY, b"", Expect.ABSENT))
    await store.close()


@pytest.mark.parametrize(
    ("free_bytes", "expected"), [(1 << 40, 16 << 20), (64 << 20, 4 << 20), (0, 256 << 10)], ids=["large", "small", "0"]
)
def test_the_log_leaves_space_for_the_file(free_bytes: int, expected: int) -> None:
    """On a small disk, checkpoints come earlier, because they need space that the log must not take."""
    assert log_bytes(free_bytes) == expected


async def test_reads_after_an_error_have_a_view(url: str) -> None:
    """An error that ends the shared transaction of several reads does not take the view from the following ones."""

    def fail() -> Steps[NoReturn]:
        yield from rows(text("ROLLBACK"))
        raise sqlite3.OperationalError("disk I/O error")

    def read_twice() -> Steps[tuple[Record | None, Record | None]]:
        before = yield from get_record(KEY)
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("UPDATE records SET version = version + 1")
        other.close()
        return before, (yield from get_record(KEY))

    store = await opened(url)
    await store.put(Put(KEY, b"", Expect.ABSENT))
    failed, (before, after) = await asyncio.gather(
        store.database.read(fail), store.database.read(read_twice), return_exceptions=True
    )  # type: ignore[misc]
    assert isinstance(failed, Unavailable)
    assert before == after
    await store.close()
