"""A damaged file is reported as Corrupt: a retry does not help."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import Corrupt, InvalidInput, TxnFrameworkError, Unavailable
from txnframework.model import Expect, IndexEntry, IndexRange, Key, KeyRange, Put
from txnframework_sql import MetadataOptions, open_metadata_store
from txnframework_sql.sqlite._errors import translated

KEY = Key("/a")


def file_of(url: str) -> Path:
    """Return the file that a URL names."""
    return Path(url.removeprefix("sqlite:///"))


async def write(url: str) -> None:
    """Create a database with one record."""
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
    """Invalid text in a text column is damage; the error names the file, and does not contain the value."""
    asyncio.run(write(url))
    database = sqlite3.connect(file_of(url))
    with database:
        database.execute("UPDATE records SET value = CAST(x'73ff6372' AS TEXT) WHERE path = '/a'")
    database.close()
    error = asyncio.run(read(url))
    assert isinstance(error, Corrupt)
    assert str(error) == f"{url} is damaged: a value in its column 'value' is not valid text"


def test_overwritten_page(url: str) -> None:
    """A page with other content is damage."""
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


PAGES_OF_RECORDS = 40


async def fill(url: str) -> dict[str, bytes]:
    """Create a database of some dozens of pages, in which every record has an index entry; return the records."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    wrote = {f"/r/{number:04}": bytes((number % 251,)) * 3_900 for number in range(4 * PAGES_OF_RECORDS)}
    for path, value in wrote.items():
        await store.put(Put(Key(path), value, Expect.ANY, (IndexEntry("by-path", path.encode()),)))
    await store.close()
    return wrote


async def read_all(url: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the records as found in the table, and as found by the index."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    try:
        scanned = await store.scan(KeyRange("/r/", "/r0"), 1_000)
        indexed = await store.scan_index(IndexRange("by-path", b"", b"\xff"), 1_000)
    finally:
        await store.close()
    return tuple({one.key.path: one.value for one in page.records} for page in (scanned, indexed))  # type: ignore[return-value]


@pytest.mark.parametrize("damage", ["cut off before", "zeros in", "ones in"])
def test_every_page(url: str, damage: str) -> None:
    """For each lost or overwritten page of a file, reads return what was written, or report the damage."""
    wrote = asyncio.run(fill(url))
    whole = file_of(url).read_bytes()
    size = int.from_bytes(whole[16:18], "big")
    told: list[str] = []
    # A file of no bytes is one that was just made, so cutting begins behind the first page.
    for page in range(damage == "cut off before", len(whole) // size):
        start, stop = page * size, (page + 1) * size
        filling = {"cut off before": b"", "zeros in": bytes(size), "ones in": b"\xff" * size}[damage]
        file_of(url).write_bytes(whole[:start] + filling + (whole[stop:] if filling else b""))
        for beside in ("-wal", "-shm"):
            file_of(url).with_name(file_of(url).name + beside).unlink(missing_ok=True)
        try:
            scanned, indexed = asyncio.run(read_all(url))
        except (Corrupt, InvalidInput) as error:
            told.append(str(error))
        else:
            assert scanned == indexed == wrote, f"{damage} page {page} goes unnoticed"
    assert len(told) > PAGES_OF_RECORDS
    assert all(url in error for error in told)


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
    """Disk errors with a code for damage are Corrupt; other disk errors may pass."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    told = translated(error, "sqlite:///txn.db")
    assert type(told) is kind
    assert "sqlite:///txn.db" in str(told)
