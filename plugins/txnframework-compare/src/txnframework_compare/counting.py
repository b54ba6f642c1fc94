"""Stores that count what is written to those behind them, whoever writes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from txnframework.broker import ForwardingProxy
from txnframework.errors import InvalidName
from txnframework.interfaces import IAtomicBatchStore, ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model import Append, Appended, Batch, Expected, Key, Put, PutSequential, Record
from txnframework.model.names import parse_name


@dataclass(slots=True)
class Counts:
    """
    Writes that were confirmed, so far.

    ``topic_entries`` were appended to topics and segments, ``log_entries`` to any other ledger; ``records`` were put,
    new or again, and ``deletions`` took one away. What leases write is the store's own and not counted.
    """

    topic_entries: int = 0
    log_entries: int = 0
    records: int = 0
    deletions: int = 0

    @property
    def entries(self) -> int:
        """Entries of every ledger."""
        return self.topic_entries + self.log_entries

    def copy(self) -> Counts:
        """Return what stands here now."""
        return Counts(*astuple(self))

    def since(self, before: Counts) -> Counts:
        """Return what came since ``before``."""
        return Counts(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


class CountingMetadata(ForwardingProxy):
    """Counts records that are put and deleted."""

    _behind: IAtomicBatchStore

    def __init__(self, behind: IMetadataStore, counts: Counts) -> None:
        super().__init__(behind)
        self._counts = counts

    async def put(self, write: Put) -> int:
        """Write a record, counted."""
        version = await self._behind.put(write)
        self._counts.records += 1
        return version

    async def put_sequential(self, write: PutSequential) -> Key:
        """Write a record under the next number, counted."""
        key = await self._behind.put_sequential(write)
        self._counts.records += 1
        return key

    async def delete(self, key: Key, expected: Expected) -> None:
        """Remove a record, counted."""
        await self._behind.delete(key, expected)
        self._counts.deletions += 1

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        """Apply a batch, each of its steps counted."""
        written = await self._behind.apply(batch)
        self._counts.records += len(batch.puts)
        self._counts.deletions += len(batch.deletes)
        return written


class CountingLedger(ForwardingProxy):
    """Counts the entries that are appended to one ledger."""

    _behind: IManagedLedger

    def __init__(self, behind: IManagedLedger, counts: Counts) -> None:
        super().__init__(behind)
        self._counts = counts
        self._is_topic = _names_a_topic(behind.name)

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append, counted; what stood there before is not."""
        appended = await self._behind.append(entries, ledger_id)
        count = _new(appended)
        if self._is_topic:
            self._counts.topic_entries += count
        else:
            self._counts.log_entries += count
        return appended


class CountingLedgers(ForwardingProxy):
    """Gives out ledgers that count."""

    _behind: ILedgerStore

    def __init__(self, behind: ILedgerStore, counts: Counts) -> None:
        super().__init__(behind)
        self._counts = counts

    async def create(self, name: str) -> IManagedLedger:
        """Make or open one that counts."""
        return self._counted(await self._behind.create(name))

    async def open(self, name: str) -> IManagedLedger:
        """Open one that counts."""
        return self._counted(await self._behind.open(name))

    def _counted(self, ledger: IManagedLedger) -> IManagedLedger:
        return IManagedLedger(CountingLedger(ledger, self._counts))


def counting_metadata(behind: IMetadataStore, counts: Counts) -> IMetadataStore:
    """Return ``behind``, with what is written through it counted."""
    return IMetadataStore(CountingMetadata(behind, counts))


def counting_ledgers(behind: ILedgerStore, counts: Counts) -> ILedgerStore:
    """Return ``behind``, with what is appended to its ledgers counted."""
    return ILedgerStore(CountingLedgers(behind, counts))


def _new(appended: Iterable[Appended]) -> int:
    return sum(not one.duplicate for one in appended)


def _names_a_topic(ledger: str) -> bool:
    """Whether a ledger holds messages: every other one has a name that no topic can have."""
    try:
        parse_name(ledger)
    except InvalidName:
        return False
    return True
