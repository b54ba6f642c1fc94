"""The programs that tests run in other processes: ``python worker.py <program> <url> <argument>...``."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from txnframework.environment import SystemEnvironment
from txnframework.errors import VersionMismatch
from txnframework.model import (
    Append,
    Expect,
    IndexEntry,
    Key,
    LedgerAppend,
    ProducerSequence,
    Put,
    PutSequential,
    Step,
)
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.sqlite import SqliteConnection, locate

COUNTER = Key("/counter")
OPENINGS = 5


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def count(url: str, times: str) -> None:
    """Increment the counter by compare and set, this many times; put a numbered record each time."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    for _ in range(int(times)):
        while True:
            record = await store.get(COUNTER)
            value = int(record.value) if record else 0
            expected = record.version if record else Expect.ABSENT
            try:
                await store.put(
                    Put(COUNTER, str(value + 1).encode(), expected, (IndexEntry("by-value", b"%d" % value),))
                )
            except VersionMismatch:
                continue
            break
        (record,) = (await store.apply(Step(puts=(PutSequential(Key("/numbered"), b""),)))).records
        say(record.key.path)
    await store.close()


async def append(url: str, producer: str, times: str) -> None:
    """Append this many entries, 16 at a time, and print each position once it is confirmed; 0: without end."""
    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(ledger_entries_max=100), None)
    ledger = await store.create("shared")
    following = iter(range(int(times) or sys.maxsize))

    async def write() -> None:
        for number in following:
            data = f"{producer}:{number}"
            entry = Append(data.encode(), sequence=ProducerSequence(producer, number, number))
            (appended,) = await ledger.append((entry,), None)
            say(f"{appended.position} {data}")

    await asyncio.gather(*(write() for _ in range(16)))
    await store.close()


async def join(url: str) -> None:
    """Append to two ledgers with a record, 16 steps at a time, without end; print each number once it is confirmed."""
    records = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(ledger_entries_max=100), None)
    ledgers = [await store.create(name) for name in ("left", "right")]
    following = itertools.count()

    async def write() -> None:
        for number in following:
            entry = Append(b"%d" % number)
            appends = tuple(LedgerAppend(ledger.reference, (entry,)) for ledger in ledgers)
            await records.apply(Step(puts=(Put(Key(f"/step/{number}"), b"", Expect.ABSENT),), appends=appends))
            say(str(number))

    await asyncio.gather(*(write() for _ in range(16)))


async def put(url: str, path: str) -> None:
    """Write a record when told to."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    say("ready")
    sys.stdin.readline()
    await store.put(Put(Key(path), b"", Expect.ANY, (IndexEntry("kind", b"k"),)))
    await store.close()


async def hold(url: str, name: str) -> None:
    """Acquire a lease, and hold it."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    lease = await store.acquire_lease(name, "the other process")
    say(str(lease.fencing))
    await lease.lost()


async def create(url: str) -> None:
    """Create the store, and print its identity."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    say(store.identity)
    await store.close()


def copy_files(database: Path, copies: str) -> None:
    """Copy the files of a store, as a program that knows nothing of locks."""
    for one in database.parent.glob(f"{database.name}*"):
        # Another process may remove the log when it closes.
        with suppress(FileNotFoundError):
            shutil.copy(one, copies)


async def copy(url: str, producer: str, times: str) -> None:
    """Append this many entries, and copy all files of the store meanwhile; print what is confirmed."""
    database = Path(url.removeprefix("sqlite:///"))
    numbers = iter(range(int(times)))
    with TemporaryDirectory() as copies:
        for _ in range(OPENINGS):
            store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(ledger_entries_max=100), None)
            ledger = await store.create("shared")

            for number in itertools.islice(numbers, int(times) // OPENINGS):
                data = f"{producer}:{number}"
                entry = Append(data.encode(), sequence=ProducerSequence(producer, number, number))
                # The copies run in the middle of the append, too.
                (appended,), _ = await asyncio.gather(
                    ledger.append((entry,), None), asyncio.to_thread(copy_files, database, copies)
                )
                say(f"{appended.position} {data}")
            await store.close()


async def begin(url: str) -> None:
    """Print whether this process may write now."""
    connection = SqliteConnection(locate(url), 1)
    connection.use_write_ahead_log()
    try:
        connection.begin_write()
    except sqlite3.OperationalError as error:
        say(str(error))
    else:
        say("begun")
    connection.close()


async def imports(url: str) -> None:
    """Print whether opening a current store needs Alembic."""
    await create(url)
    say(str("alembic" in sys.modules))


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {
    command.__name__: command for command in (count, append, join, put, hold, create, copy, begin, imports)
}

if __name__ == "__main__":
    asyncio.run(COMMANDS[sys.argv[1]](*sys.argv[2:]))  # type: ignore[arg-type]
