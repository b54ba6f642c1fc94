"""Ledgers and records of one database, for the rules of joint appends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from txnframework.errors import LedgerNotFound
from txnframework.interfaces import IColocatedLedger, IColocatedLedgerStore, IColocatedStore
from txnframework.model import (
    Append,
    Batch,
    Expect,
    IndexEntry,
    IndexRange,
    Key,
    LedgerAppend,
    Put,
)
from txnframework.testing._suites._ledger._case import NAME, LedgerStoreRules, read_all
from txnframework.testing.harness import Colocated

HEADER = Key("/txn/joint", "joint")
CURSOR = Key("/cursor/joint", "/cursor/joint")
OLD = Key("/txn-op/joint/1", "joint")
TAKEN = IndexEntry("suite-acks", b"k")
ACKS = IndexRange("suite-acks", b"", b"\xff")
CALLS = 20
MANY = 300


class LedgersAndRecords(NamedTuple):
    """Ledgers, their store, and the records beside them; the cursor exists with this version."""

    store: IColocatedLedgerStore
    ledgers: tuple[IColocatedLedger, ...]
    records: IColocatedStore
    cursor: int

    def appends(self, *entries: Append) -> tuple[LedgerAppend, ...]:
        """Return these entries for each of the ledgers."""
        return tuple(LedgerAppend(ledger.reference, entries) for ledger in self.ledgers)

    def batch(self, cursor: int | None = None) -> Batch:
        """Return a header to create, and a move of the cursor from a version; they have different partitions."""
        expected = self.cursor if cursor is None else cursor
        puts = (Put(HEADER, b"committed", Expect.ABSENT), Put(CURSOR, b"moved", expected))
        return Batch(puts=puts, across_partitions=True)

    async def require_nothing_written(self) -> None:
        """Fail if a record was changed, or a ledger that is not deleted has an entry."""
        assert await self.records.get(HEADER) is None
        cursor = await self.records.get(CURSOR)
        assert cursor is not None
        assert cursor.version == self.cursor
        for ledger in self.ledgers:
            try:
                assert await read_all(ledger) == [], ledger.name
            except LedgerNotFound:
                continue


class JointRules(LedgerStoreRules):
    """Base class of the rules of joint appends."""

    @asynccontextmanager
    async def _ledgers_and_records(self, ledgers: int = 3) -> AsyncIterator[LedgersAndRecords]:
        assert isinstance(self.data, Colocated)
        async with self.data.open_with_records() as (store, records):
            assert IColocatedLedgerStore.providedBy(store)
            assert store.location == records.location
            created: list[IColocatedLedger] = []
            for number in range(ledgers):
                ledger = await store.create(f"{NAME}{number}")
                assert IColocatedLedger.providedBy(ledger)
                assert ledger.location == store.location
                created.append(ledger)
            cursor = await records.put(Put(CURSOR, b"start", Expect.ABSENT))
            yield LedgersAndRecords(store, tuple(created), records, cursor)
