"""
A process reads or copies the files of its own open store, which drops its POSIX locks, those of SQLite among them.

The programs here know nothing of that, as the backup of an application, or a second SQLite library in the process.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.model import Expect, Key, Put
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.sqlite import SqliteConnection, locate

from .test_processes import lines_of, read_all

if sys.platform != "linux":
    pytest.skip("only Linux has locks that a process cannot drop so", allow_module_level=True)

Start = Callable[..., "subprocess.Popen[str]"]

FILES = ["", "-wal", "-shm"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'data' / 'txn.db'}"


def file_of(url: str, suffix: str) -> Path:
    """Return a file of the store."""
    return Path(f"{url.removeprefix('sqlite:///')}{suffix}")


@pytest.mark.parametrize("suffix", FILES)
async def test_a_reader_of_its_own_file_stays_in_the_store(url: str, start: Start, suffix: str) -> None:
    """After a process read a file of its store, another one that closes leaves the log in place, and both share it."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    await store.put(Put(Key("/counter"), b"5", Expect.ABSENT))
    for expected in (6, 7):
        file_of(url, suffix).read_bytes()
        await asyncio.to_thread(lambda: lines_of(start("count", url, "1")))
        counter = await store.get(Key("/counter"))
        assert counter is not None
        assert counter.value == b"%d" % expected
    await store.close()
    assert not file_of(url, "-wal").exists(), "the last one moves the log into the file"


@pytest.mark.parametrize("suffix", FILES)
def test_a_reader_of_its_own_file_stays_the_only_writer(url: str, start: Start, suffix: str) -> None:
    """While a process writes, no other one begins to, although the process read a file of its store."""
    assert lines_of(start("create", url))
    connection = SqliteConnection(locate(url), 1_000)
    connection.use_write_ahead_log()
    connection.begin_write()
    file_of(url, suffix).read_bytes()
    assert lines_of(start("begin", url)) == ["database is locked"]
    connection.rollback()
    assert lines_of(start("begin", url)) == ["begun"]
    connection.close()


def test_files_stay_open_while_the_application_has_them_open(url: str, start: Start) -> None:
    """A store that closes drops no lock of another connection of its process; the last one leaves no descriptor."""
    assert lines_of(start("create", url))
    before = open_count(url)
    with ExitStack() as stack:
        connections = [SqliteConnection(locate(url), 1_000) for _ in range(2)]
        for connection in connections:
            connection.use_write_ahead_log()
        stack.callback(connections[0].close)
        connections[0].begin_write()
        connections[1].close()
        assert lines_of(start("begin", url)) == ["database is locked"]
        connections[0].rollback()
    assert open_count(url) == before == 0


def open_count(url: str) -> int:
    """Return how many descriptors of a store's files this process has."""
    names = {str(file_of(url, suffix)) for suffix in FILES}
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        try:
            found += str(one.readlink()) in names
        except FileNotFoundError:  # that of the listing
            continue
    return found


async def test_three_processes_that_copy_their_files(url: str, start: Start) -> None:
    """Processes that append, copy all files of the store, and open it again lose nothing, and store nothing twice."""
    processes = [start("copy", url, f"p{number}", "100") for number in range(3)]
    told = [line for process in processes for line in lines_of(process)]
    assert len(told) == 300

    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(), None)
    found = [f"{entry.position} {entry.data.decode()}" for entry in await read_all(store, "shared")]
    assert sorted(found) == sorted(told)
    await store.close()
