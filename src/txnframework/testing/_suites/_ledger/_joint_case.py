"""Ledgers and records of one database, for the rules of steps with appends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from msgspec.structs import replace

from txnframework.errors import LedgerNotFound
from txnframework.interfaces import ICoCommitStore, IDatabaseTransaction, ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import (
    Append,
    Applied,
    Expect,
    IndexEntry,
    IndexRange,
    Key,
    LedgerAppend,
    Position,
    Put,
    Step,
)
from txnframework.testing._suites._ledger._case import NAME, LedgerStoreRules, read_all
from txnframework.testing.harness import Colocated

HEADER = Key("/txn/joint", "joint")
CURSOR = Key("/cursor/joint", "/cursor/joint")
OLD = Key("/txn-op/joint/1", "joint")
TAKEN = IndexEntry("suite-acks", b"k")
ACKS = IndexRange("suite-acks", b"", b"\xff")
CALLS = 20
_NOTHING = Step()
MANY = 300


class LedgersAndRecords(NamedTuple):
    """Ledgers, their store, and the records beside them; the cursor exists with this version."""

    store: ILedgerStore
    ledgers: tuple[IManagedLedger, ...]
    records: IMetadataStore
    cursor: int

    def appends(self, *entries: Append) -> tuple[LedgerAppend, ...]:
        """Return these entries for each of the ledgers."""
        return tuple(LedgerAppend(ledger.reference, entries) for ledger in self.ledgers)

    async def make(self, step: Step, transaction: IDatabaseTransaction | None = None) -> Applied:
        """Make a step, perhaps in a transaction of the application."""
        if transaction is None:
            return await self.records.apply(step)
        return await ICoCommitStore(self.records).apply(step, transaction)

    def puts(self, cursor: int | None = None) -> Step:
        """Return a header to create, and a move of the cursor from a version; they have different partitions."""
        expected = self.cursor if cursor is None else cursor
        puts = (Put(HEADER, b"committed", Expect.ABSENT), Put(CURSOR, b"moved", expected))
        return Step(puts=puts)

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


def joint(appends: tuple[LedgerAppend, ...], step: Step = _NOTHING, vacant: tuple[IndexRange, ...] = ()) -> Step:
    """Return a step with appends and vacant ranges in addition to its records."""
    return replace(step, appends=appends, vacant=vacant)


def positions_of(done: Applied) -> tuple[tuple[Position, ...], ...]:
    """Return the positions of the entries of each append."""
    assert not any(one.duplicate for some in done.appended for one in some)
    return tuple(tuple(one.position for one in some) for some in done.appended)


class JointRules(LedgerStoreRules):
    """Base class of the rules of steps with appends."""

    @asynccontextmanager
    async def _ledgers_and_records(self, ledgers: int = 3) -> AsyncIterator[LedgersAndRecords]:
        assert isinstance(self.data, Colocated)
        async with self.data.open_with_records() as (store, records):
            assert store.location == records.location
            created: list[IManagedLedger] = []
            for number in range(ledgers):
                ledger = await store.create(f"{NAME}{number}")
                assert ledger.location == store.location
                created.append(ledger)
            cursor = await records.put(Put(CURSOR, b"start", Expect.ABSENT))
            yield LedgersAndRecords(store, tuple(created), records, cursor)
