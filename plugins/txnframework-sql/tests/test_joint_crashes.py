"""A process that dies in a joint append on SQLite leaves all of the step, or nothing."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TypeVar

from txnframework.environment import SystemEnvironment
from txnframework.model import (
    EARLIEST,
    Append,
    Branch,
    EntryRange,
    Expect,
    IndexEntry,
    IndexRange,
    Key,
    LedgerAppend,
    Limit,
    Put,
    Step,
    TxnID,
)
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.steps.statements import Steps

T = TypeVar("T")

LEDGERS = 3
HEADER, CURSOR = Key("/txn/1"), Key("/cursor")


class Copying(SqliteConnection):
    """A connection that copies the database's files, as a kill would leave them, before and after each statement."""

    copies: Path
    count = 0
    is_on = False

    def perform(self, steps: Steps[T]) -> T:
        """Perform steps, with a copy before each statement."""
        return super().perform(self._copied(steps))

    def commit(self) -> None:
        """Commit, with a copy before and after it."""
        self._copy()
        super().commit()
        self._copy()

    def _copied(self, steps: Steps[T]) -> Steps[T]:
        answer = None
        while True:
            try:
                call = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            self._copy()
            answer = yield call

    def _copy(self) -> None:
        if self.is_on:
            target = self.copies / str(self.count)
            target.mkdir(parents=True)
            for suffix in ("", "-wal"):
                shutil.copy(f"{self.sqlalchemy_connection.engine.url.database}{suffix}", target / f"txn.db{suffix}")
            type(self).count += 1


async def contents(url: str) -> tuple[bool, bool, bool, tuple[bool, ...]]:
    """Return whether the header, the new cursor, the transaction number and each ledger's entry are stored."""
    records = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(), None)
    cursor = await records.get(CURSOR)
    assert cursor is not None
    header = await records.get(HEADER)
    indexed = await records.scan_index(IndexRange("state", b"", b"\xff"), 10)
    assert indexed.records == (() if header is None else (header,))
    entries = []
    for number in range(LEDGERS):
        ledger = await store.open(f"ledger-{number}")
        found = await ledger.read(EntryRange(EARLIEST, (await ledger.tail()).last_confirmed), Limit(10))
        assert [one.data for one in found[1:]] in ([], [b"2"])
        entries.append(len(found) == 2)
    highest = await store.highest_txn_numbers()
    await store.close()
    await records.close()
    return header is not None, cursor.value == b"new", highest == {1: 7}, tuple(entries)


def test_killed_anywhere(tmp_path: Path) -> None:
    """
    After a kill before or after any statement of a step, the next process finds all of the step or nothing.

    This holds for a step that only adds rows, and for one that also fills one of its ledgers.
    """
    for entries_max in (100, 2):
        asyncio.run(_kill_anywhere(tmp_path / str(entries_max), entries_max))


async def _kill_anywhere(directory: Path, entries_max: int) -> None:
    class Kind(Copying):
        copies = directory / "copies"

    url = f"sqlite:///{directory}/txn.db"
    records = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
    version = await records.put(Put(CURSOR, b"old", Expect.ABSENT))
    await records.close()
    records = await open_metadata_store(url, SystemEnvironment(), MetadataOptions(), Kind)
    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(ledger_entries_max=entries_max), None, Kind)
    appends = []
    for number in range(LEDGERS):
        ledger = await store.create(f"ledger-{number}")
        await ledger.append((Append(b"1"),), None)
        entry = Append(b"2", 1, Branch(TxnID(1, 7), 0))
        appends.append(LedgerAppend(ledger.reference, (entry,)))
    header = Put(HEADER, b"committed", Expect.ABSENT, (IndexEntry("state", b"c"),))
    step = Step(puts=(header, Put(CURSOR, b"new", version)), appends=tuple(appends))
    Kind.is_on = True
    await records.apply(step)
    Kind.is_on = False
    await records.close()
    await store.close()
    found = [await contents(f"sqlite:///{Kind.copies}/{number}/txn.db") for number in range(Kind.count)]
    nothing, everything = (False, False, False, (False,) * LEDGERS), (True, True, True, (True,) * LEDGERS)
    assert set(found) == {nothing, everything}
    assert found == sorted(found)
    # Statements of records and of ledgers come before the commit.
    assert found.count(nothing) > LEDGERS
