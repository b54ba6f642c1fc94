"""Shared parts of the rules of ledger stores."""

from __future__ import annotations

from typing import Any, ClassVar

from txnframework.interfaces import (
    ICopyableLedgerStore,
    ILedgerStore,
    IManagedLedger,
    IRestorable,
)
from txnframework.model import (
    EARLIEST,
    Append,
    Appended,
    Branch,
    EntryRange,
    LedgerEntry,
    Limit,
    Position,
    ProducerSequence,
    TxnID,
)
from txnframework.testing._suites._base import Suite
from txnframework.testing.harness import CoCommitting, Colocated, Crashing, Disconnecting, Harness, Misleading, Paired

NAME = "segment://public/default/suite/0000-ffff-0"
MANY = Limit(1000)
NONE: frozenset[Branch] = frozenset()


class LedgerStoreRules(Suite):
    """Base class of the rules of ledger stores; the harness opens clients of one store."""

    capabilities: ClassVar[tuple[Any, ...]] = (
        ICopyableLedgerStore, Paired, Crashing, Disconnecting, IRestorable, Misleading, Colocated,
        CoCommitting,
    )  # fmt: skip
    data: Harness[ILedgerStore]


def sent(producer: str, first: int, last: int | None = None, branch: Branch | None = None) -> Append:
    """Return an entry of a producer with these sequences; its data contains their numbers."""
    last = first if last is None else last
    sequence = ProducerSequence(producer, first, last)
    return Append(f"{producer}:{first}-{last}".encode(), last - first + 1, branch, sequence)


def branch(number: int, txn: int = 1, coordinator: int = 1) -> Branch:
    """Return a branch of a transaction."""
    return Branch(TxnID(coordinator, txn), number)


async def append(ledger: IManagedLedger, *data: bytes) -> list[Position]:
    """Append entries to the open ledger, whichever it is; return their positions."""
    appended = await ledger.append(tuple(Append(one) for one in data), None)
    return [one.position for one in appended]


async def send(ledger: IManagedLedger, *entries: Append) -> tuple[Appended, ...]:
    """Append entries to the ledger that is open now, by its id."""
    tail = await ledger.tail()
    return await ledger.append(entries, tail.open_ledger_id)


async def read_range(ledger: IManagedLedger, entries: EntryRange, limit: Limit = MANY) -> list[LedgerEntry]:
    """Read a range to its end, in steps."""
    found: list[LedgerEntry] = []
    after = entries.after
    while True:
        step = await ledger.read(EntryRange(after, entries.upto), limit)
        assert len(step) <= limit.items
        if not step:
            return found
        found += step
        assert step[-1].position > after, "reading goes on"
        after = step[-1].position


async def read_all(ledger: IManagedLedger, after: Position = EARLIEST) -> list[bytes]:
    """Return the data of all entries after a position, up to the tail."""
    tail = await ledger.tail()
    return [entry.data for entry in await read_range(ledger, EntryRange(after, tail.last_confirmed))]


async def last_of(ledger: IManagedLedger) -> Position:
    """Return the last confirmed position."""
    return (await ledger.tail()).last_confirmed
