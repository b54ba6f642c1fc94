"""A damaged file is told as what it is: trying again does not help."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import Corrupt, TxnFrameworkError, Unavailable
from txnframework.model import Expect, Key, Put
from txnframework_sql import MetadataOptions, open_metadata_store
from txnframework_sql.sqlite._errors import translated

KEY = Key("/a")


def file_of(url: str) -> Path:
    """Return the file that a URL names."""
    return Path(url.removeprefix("sqlite:///"))


async def write(url: str) -> None:
    """Make a database with one record."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    await store.put(Put(KEY, b"value", Expect.ANY))
    await store.close()


async def read(url: str) -> TxnFrameworkError:
    """Return the error of reading the record."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    try:
        with pytest.raises(TxnFrameworkError) as raised:
            await store.get(KEY)
    finally:
        await store.close()
    return raised.value


def test_value_that_is_not_text(url: str) -> None:
    """A value that SQLite has as text and that is none is damage; the file is named, and the value is not printed."""
    asyncio.run(write(url))
    database = sqlite3.connect(file_of(url))
    with database:
        database.execute("UPDATE records SET value = CAST(x'73ff6372' AS TEXT) WHERE path = '/a'")
    database.close()
    error = asyncio.run(read(url))
    assert isinstance(error, Corrupt)
    assert str(error) == f"{url} is damaged: a value in its column 'value' is not the text it claims to be"


def test_overwritten_page(url: str) -> None:
    """A page with something else in it is damage."""
    asyncio.run(write(url))
    database = sqlite3.connect(file_of(url))
    (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'records'").fetchone()
    (size,) = database.execute("PRAGMA page_size").fetchone()
    database.close()
    with file_of(url).open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    error = asyncio.run(read(url))
    assert isinstance(error, Corrupt)
    assert str(error) == f"{url} is damaged: database disk image is malformed"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_IOERR_SHORT_READ, Corrupt),
        (sqlite3.SQLITE_IOERR_CORRUPTFS, Corrupt),
        (sqlite3.SQLITE_IOERR_DATA, Corrupt),
        (sqlite3.SQLITE_IOERR_READ, Unavailable),
    ],
)
def test_disk_errors(code: int, kind: type[TxnFrameworkError]) -> None:
    """Of the disk's errors those are damage that say so; others may pass."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    told = translated(error, "sqlite:///txn.db")
    assert type(told) is kind
    assert "sqlite:///txn.db" in str(told)
