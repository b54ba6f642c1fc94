"""A new file has a page size that suits large entries; an existing file keeps its own."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.model import Expect, Key, Put
from txnframework_sql import MetadataOptions, open_metadata_store
from txnframework_sql.sqlite import SqliteConnection, locate

LOG_BYTES = 16 << 20


async def write(url: str) -> None:
    """Create a database with one record."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    await store.put(Put(Key("/a"), b"value", Expect.ANY))
    await store.close()


@pytest.mark.parametrize(("made_with", "size"), [(None, 16_384), (4_096, 4_096)])
def test_pages_and_log(url: str, made_with: int | None, size: int) -> None:
    """For every page size, the log is copied into the file once per 16 MiB."""
    path = Path(url.removeprefix("sqlite:///"))
    if made_with is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        early = sqlite3.connect(path)
        early.execute(f"PRAGMA page_size = {made_with}")
        # The file has its first page from here on, and no table.
        early.execute("PRAGMA user_version = 1")
        early.close()
    asyncio.run(write(url))
    reader = sqlite3.connect(path)
    assert reader.execute("PRAGMA page_size").fetchone() == (size,)
    reader.close()
    database = SqliteConnection(locate(url), 1_000)
    (pages,) = database.sqlalchemy_connection.exec_driver_sql("PRAGMA wal_autocheckpoint").fetchone() or (0,)
    database.close()
    assert pages * size == LOG_BYTES
