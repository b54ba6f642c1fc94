"""Wrappers of stores that count all writes that go through them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from txnframework.broker import ForwardingProxy
from txnframework.errors import InvalidName
from txnframework.interfaces import (
    ILedgerStore,
    IManagedLedger,
    IMetadataStore,
)
from txnframework.model import (
    Append,
    Appended,
    Applied,
    Expected,
    Key,
    Put,
    Step,
)
from txnframework.model.names import parse_name


@dataclass(slots=True)
class Counts:
    """
    The numbers of confirmed writes.

    ``topic_entries`` were appended to topics and segments, ``log_entries`` to all other ledgers. ``records`` counts
    puts of new and existing records, and ``deletions`` removed records. The store's own writes for leases are not
    counted.
    """

    topic_entries: int = 0
    log_entries: int = 0
    records: int = 0
    deletions: int = 0

    @property
    def entries(self) -> int:
        """The entries of all ledgers."""
        return self.topic_entries + self.log_entries

    def copy(self) -> Counts:
        """Return a copy of the current numbers."""
        return Counts(*astuple(self))

    def since(self, before: Counts) -> Counts:
        """Return the numbers added since ``before``."""
        return Counts(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


class CountingMetadata(ForwardingProxy):
    """Counts the records that are put and deleted."""

    _behind: IMetadataStore

    def __init__(self, behind: IMetadataStore, counts: Counts) -> None:
        super().__init__(behind)
        self._counts = counts

    async def put(self, write: Put) -> int:
        """Put a record and count it."""
        version = await self._behind.put(write)
        self._counts.records += 1
        return version

    async def delete(self, key: Key, expected: Expected) -> None:
        """Delete a record and count it."""
        await self._behind.delete(key, expected)
        self._counts.deletions += 1

    async def apply(self, step: Step, *transaction: Any) -> Applied:
        """Make a step and count each of its puts and deletions, and its entries, which are messages."""
        applied = await self._behind.apply(step, *transaction)
        self._counts.records += len(applied.records)
        self._counts.deletions += len(step.deletes)
        self._counts.topic_entries += sum(map(_new, applied.appended))
        return applied


class CountingLedger(ForwardingProxy):
    """Counts the entries that are appended to one ledger."""

    _behind: IManagedLedger

    def __init__(self, behind: IManagedLedger, counts: Counts) -> None:
        super().__init__(behind)
        self._counts = counts
        self._is_topic = _names_a_topic(behind.name)

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append entries and count those that are not duplicates."""
        appended = await self._behind.append(entries, ledger_id)
        self._add(appended)
        return appended

    def _add(self, appended: tuple[Appended, ...]) -> None:
        count = _new(appended)
        if self._is_topic:
            self._counts.topic_entries += count
        else:
            self._counts.log_entries += count


class CountingLedgers(ForwardingProxy):
    """Returns ledgers that count."""

    _behind: ILedgerStore

    def __init__(self, behind: ILedgerStore, counts: Counts) -> None:
        super().__init__(behind)
        self._counts = counts

    async def create(self, name: str) -> IManagedLedger:
        """Create or open a counting ledger."""
        return self._counted(await self._behind.create(name))

    async def open(self, name: str) -> IManagedLedger:
        """Open a counting ledger."""
        return self._counted(await self._behind.open(name))

    def _counted(self, ledger: IManagedLedger) -> IManagedLedger:
        return IManagedLedger(CountingLedger(ledger, self._counts))


def counting_metadata(behind: IMetadataStore, counts: Counts) -> IMetadataStore:
    """Return ``behind`` with its writes counted."""
    return IMetadataStore(CountingMetadata(behind, counts))


def counting_ledgers(behind: ILedgerStore, counts: Counts) -> ILedgerStore:
    """Return ``behind`` with the appends to its ledgers counted."""
    return ILedgerStore(CountingLedgers(behind, counts))


def _new(appended: Iterable[Appended]) -> int:
    return sum(not one.duplicate for one in appended)


def _names_a_topic(ledger: str) -> bool:
    """Return whether a ledger holds messages; the names of all others are invalid as topic names."""
    try:
        parse_name(ledger)
    except InvalidName:
        return False
    return True
