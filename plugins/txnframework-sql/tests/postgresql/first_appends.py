"""First appends of transactions in a database of PostgreSQL, for several tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import (
    EARLIEST,
    Append,
    Appended,
    Applied,
    Check,
    EntryRange,
    Expect,
    IndexEntry,
    IndexRange,
    Intent,
    Key,
    LedgerAppend,
    Limit,
    Put,
    Reach,
    Record,
    Step,
    require_valid,
)
from txnframework.model.records import WriteOperation, decode

if TYPE_CHECKING:
    from conftest import Ledgers

EVERYTHING = IndexRange("by-segment", b"", b"\xff")
ALL = Limit(10_000)


def header_key(txn: int) -> Key:
    return Key(f"/txn/{txn:04d}", f"{txn:04d}")


def prefix_of(txn: int) -> Key:
    return Key(f"/txn-op/{txn:04d}", f"{txn:04d}")


def request(
    txn: int, version: int, ledger: IManagedLedger, *entries: Append, indexes: Sequence[IndexEntry] = ()
) -> Step:
    """Return the first append of a transaction to a ledger."""
    operation = WriteOperation(branch=0, segment=ledger.name, ledger=0, after=str(EARLIEST))
    found = (IndexEntry("by-segment", ledger.name.encode()), *indexes)
    append = LedgerAppend(ledger.reference, entries or (Append(b"x"),), Intent(prefix_of(txn), found, operation))
    return Step(checks=(Check(header_key(txn), version),), appends=(append,))


class Announced(NamedTuple):
    """What a step with an intent has written."""

    appended: tuple[Appended, ...]
    record: Record
    operation: WriteOperation


async def announce(ledger: IManagedLedger, step: Step) -> Announced:
    """Make a step with an intent, by the connections of this handle's store."""
    (append,) = step.appends
    reference: Any = ledger.reference
    require_valid(step, Reach.DATABASE)
    done: Applied = await reference.operations.apply(replace(step, appends=(replace(append, ledger=reference),)), 0)
    (record,), (appended,) = done.records, done.appended
    return Announced(appended, record, decode(WriteOperation, record))


class Both(NamedTuple):
    """A client of ledgers and records."""

    store: ILedgerStore
    records: IMetadataStore

    async def begin(self, *txns: int) -> list[int]:
        """Write the headers of transactions; return their versions."""
        puts = (self.records.put(Put(header_key(txn), b"open", Expect.ABSENT)) for txn in txns)
        return list(await asyncio.gather(*puts))

    async def create(self, *names: str) -> list[IManagedLedger]:
        return [await self.store.create(name) for name in names]

    async def operations(self) -> list[Record]:
        return [*(await self.records.scan_index(EVERYTHING, 10_000)).records]


@asynccontextmanager
async def opened(ledgers: Ledgers, *, is_shared: bool = False, **options: Any) -> AsyncIterator[Both]:
    """Open ledgers and records like another process; ``is_shared``: with the same connections."""
    async with (
        ledgers.opened(share_connection=is_shared, **options) as store,
        ledgers.records(share_connection=is_shared) as records,
    ):
        yield Both(store, records)


async def entries_of(ledger: IManagedLedger) -> list[bytes]:
    tail = await ledger.tail()
    return [one.data for one in await ledger.read(EntryRange(EARLIEST, tail.last_confirmed), ALL)]


async def outcomes(*calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def kinds(answers: Sequence[object]) -> list[type]:
    return [type(answer) for answer in answers]
