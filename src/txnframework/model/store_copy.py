"""Values of the roles that copy a whole store."""

from __future__ import annotations

import msgspec

from txnframework.model.ids import Branch
from txnframework.model.ledger import LedgerSummary, ProducerSequence
from txnframework.model.metadata import IndexEntry, IndexRange, Key, KeyRange, Record
from txnframework.model.positions import EntryRange, Position


class StoredEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry with everything that a ledger stores of it; ``appended_ms``: when, by the store's clock."""

    position: Position
    data: bytes
    messages: int
    appended_ms: int


class LedgerShape(msgspec.Struct, frozen=True):
    """
    A managed ledger without its entries and its deduplication window.

    ``ledgers``: those that are left, in order, the open one last. ``trimmed``: its first entry ever, and the last entry
    that was trimmed; None: no entry was trimmed.
    """

    ledgers: tuple[LedgerSummary, ...]
    sealed: bool
    trimmed: tuple[Position, Position] | None = None

    @property
    def whole(self) -> EntryRange:
        """The range of the entries that are left."""
        return EntryRange(Position(self.ledgers[0].ledger_id, -1), self.ledgers[-1].last)

    @property
    def before_open(self) -> Position:
        """The last entry before the open ledger; without one, the position before the open ledger's first entry."""
        if len(self.ledgers) > 1:
            return self.ledgers[-2].last
        return self.trimmed[1] if self.trimmed else Position(self.ledgers[-1].ledger_id, -1)

    def following(self, position: Position) -> Position | None:
        """Return the entry that follows an entry, or ``whole.after``; None: it is the last one."""
        sizes = {one.ledger_id: one.entries for one in self.ledgers}
        if position.entry_id + 1 < sizes[position.ledger_id]:
            return Position(position.ledger_id, position.entry_id + 1)
        return next((Position(one, 0) for one, size in sizes.items() if one > position.ledger_id and size), None)


class RememberedSequence(msgspec.Struct, frozen=True, gc=False):
    """
    A copy of a producer's sequence in the deduplication window of a managed ledger.

    ``branch``: as ``find_sequence`` reports it. ``appended_ms``: not earlier than its entry was appended, by the
    store's clock; it decides when a silent producer is forgotten.
    """

    sequence: ProducerSequence
    position: Position
    branch: Branch | None
    appended_ms: int


class IndexedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with its index entries, sorted."""

    record: Record
    indexes: tuple[IndexEntry, ...]


class IndexedPage(msgspec.Struct, frozen=True):
    """A bounded page of records with their index entries; ``resume`` is the remaining range, None at the end."""

    records: tuple[IndexedRecord, ...]
    resume: KeyRange | None = None


class IndexReference(msgspec.Struct, frozen=True, gc=False):
    """One entry of an index, and the key of the record that it leads to."""

    entry: IndexEntry
    key: Key


class IndexPage(msgspec.Struct, frozen=True):
    """A bounded page of an index; ``resume`` is the remaining range, None at the end."""

    lines: tuple[IndexReference, ...]
    resume: IndexRange | None = None
