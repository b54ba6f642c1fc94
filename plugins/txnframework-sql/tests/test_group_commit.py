"""Writes that wait together share a commit, and each has its own outcome."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.model import Append, Expect, Key, Put
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.sqlite import SqliteConnection, locate
from txnframework_sql.sqlite._database import SqliteDatabase
from txnframework_sql.steps.record_writes import put_record
from txnframework_sql.steps.statements import Steps


def put(path: str, expected: Expect = Expect.ABSENT) -> Put:
    """Return a write of a record."""
    return Put(Key(path), b"", expected)


async def test_concurrent_writes_share_commits(url: str) -> None:
    """Hundreds of simultaneous writes, to records and to ledgers, take a handful of commits."""
    environment = SystemEnvironment()
    store = await open_metadata_store(url, environment, MetadataOptions())
    ledgers = await open_ledger_store(url, environment, LedgerOptions(), store.identity)
    ledger = await ledgers.create("a")
    before = store.database.commits
    await asyncio.gather(
        *(store.put(put(f"/{number}")) for number in range(300)),
        *(ledger.append((Append(b""),), None) for _ in range(300)),
    )
    assert store.database.commits - before <= 10
    assert (await ledger.tail()).last_confirmed.entry_id == 299
    await ledgers.close()
    await store.close()


async def test_refused_write_leaves_its_group(url: str) -> None:
    """A refused write changes nothing; the writes that share its commit are confirmed."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    outcomes = await asyncio.gather(
        *(store.put(put(f"/{number % 50}")) for number in range(100)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [int] * 50 + [VersionMismatch] * 50
    await store.close()


async def test_write_that_fails_half_way_is_undone_alone(url: str) -> None:
    """If work fails after it has written, its writes are rolled back, and the others of its group are confirmed."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())

    def break_off() -> Steps[None]:
        yield from put_record(put("/half"))
        raise ZeroDivisionError

    outcomes = await asyncio.gather(
        store.put(put("/a")), store.database.write(break_off), store.put(put("/b")), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [int, ZeroDivisionError, int]
    assert await store.get(Key("/half")) is None
    assert await store.get(Key("/a")) is not None
    assert await store.get(Key("/b")) is not None
    await store.close()


class Unsure(SqliteConnection):
    """A connection whose second commit takes effect without a reply."""

    commits = 0

    def commit(self) -> None:
        """Commit, then fail."""
        super().commit()
        self.commits += 1
        if self.commits == 2:
            raise sqlite3.OperationalError("disk I/O error")


async def test_commit_without_an_answer(url: str) -> None:
    """When COMMIT fails, every write that shared it has an unknown outcome; a refused write stays refused."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions(), Unsure)
    outcomes = await asyncio.gather(
        store.put(put("/a")), store.put(put("/a")), store.put(put("/b")), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, VersionMismatch, OutcomeUnknown]
    assert isinstance(outcomes[0], OutcomeUnknown)
    assert isinstance(outcomes[0].__cause__, sqlite3.OperationalError)
    assert await store.get(Key("/b")) is not None
    await store.database.close()


async def test_locked_for_too_long(url: str) -> None:
    """A write that does not get the lock in time raises Unavailable and has changed nothing; reads continue."""
    store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions(lock_timeout_ms=50))
    other = sqlite3.connect(locate(url).path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        await store.put(put("/a"))
    assert await store.get(Key("/a")) is None
    other.execute("ROLLBACK")
    other.close()
    await store.put(put("/a"))
    await store.close()


async def test_queue_is_bounded(url: str) -> None:
    """At most ``queue_max`` operations are queued for the thread; the others wait, and all are performed."""
    executor = await SqliteDatabase.open(locate(url), MetadataOptions(queue_max=2), "identity")
    await asyncio.gather(
        *(
            executor.write(lambda number=number: put_record(put(f"/{number}")))  # type: ignore[misc]
            for number in range(20)
        )
    )
    # Two at a time: at least ten groups.
    assert executor.commits >= 10
    await executor.close()
