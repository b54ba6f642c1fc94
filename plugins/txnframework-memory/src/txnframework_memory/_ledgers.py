"""Managed ledgers and their deduplication windows; every change is one step without an await."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter

from txnframework.errors import EntryTrimmed, LedgerClosed, LedgerNotFound, LedgerSealed, StoreMismatch
from txnframework.model import (
    Append,
    Appended,
    Branch,
    EntryRange,
    LedgerEntry,
    LedgerSummary,
    Limit,
    MessageCount,
    Position,
    ProducerSequence,
    Tail,
    WindowState,
)
from txnframework_memory._link import Grown, Watches

_FIRST = attrgetter("sequence.first")

DEDUPLICATION_WINDOW = 10_000
"""The number of sequences of one producer that are remembered at least, for each managed ledger."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The position of a stored sequence."""

    position: Position
    branch: Branch | None
    sequence: ProducerSequence

    def appended(self) -> Appended:
        """Return the copy as a ledger reports it."""
        return Appended(self.position, True, self.branch, self.sequence)


@dataclass(slots=True)
class Window:
    """The copies of one producer's last sequences, by first sequence; no two of them overlap."""

    copies: list[Copy] = field(default_factory=list)
    sequences: int = 0
    size: int = DEDUPLICATION_WINDOW

    def overlapping(self, first: int, last: int) -> list[Copy]:
        """Return the copies that hold any of these sequences, in order."""
        at = bisect_right(self.copies, first, key=_FIRST)
        if at and self.copies[at - 1].sequence.last >= first:
            at -= 1
        return self.copies[at : bisect_right(self.copies, last, key=_FIRST)]

    def remove(self, copy: Copy) -> None:
        """Forget a copy that no longer counts."""
        self.copies.remove(copy)
        self.sequences -= _size(copy)

    def settle(self, upto_ledger_id: int, aborted: frozenset[Branch]) -> None:
        """Forget copies of aborted branches up to a ledger; the other copies there count, whatever their branch."""
        kept = [
            replace(copy, branch=None) if copy.branch and copy.position.ledger_id <= upto_ledger_id else copy
            for copy in self.copies
            if copy.branch not in aborted or copy.position.ledger_id > upto_ledger_id
        ]
        self.copies = kept
        self.sequences = sum(map(_size, kept))

    def add(self, copy: Copy) -> None:
        """Remember a copy, and forget the oldest ones as long as ``size`` sequences remain."""
        insort(self.copies, copy, key=_FIRST)
        self.sequences += _size(copy)
        while self.sequences > self.size and self.sequences - _size(self.copies[0]) >= self.size:
            self.remove(self.copies[0])

    def remembered(self, sequence: int) -> WindowState:
        """Return what the window remembers, and how many of its sequences are above ``sequence``."""
        behind = (copy.sequence for copy in self.copies if copy.sequence.last > sequence)
        above = sum(one.last - max(one.first - 1, sequence) for one in behind)
        return WindowState(self.size, self.copies[-1].sequence.last if self.copies else None, above)


def _size(copy: Copy) -> int:
    return copy.sequence.last - copy.sequence.first + 1


LEDGERS_TRIMMED_MAX = 100
"""The most ledgers that one call of ``trim`` removes."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored entry."""

    position: Position
    data: bytes
    messages: int
    appended_ms: int


def _summary(ledger_id: int, ledger: list[Stored]) -> LedgerSummary:
    return LedgerSummary(
        ledger_id,
        len(ledger),
        sum(stored.messages for stored in ledger),
        sum(len(stored.data) for stored in ledger),
        ledger[-1].appended_ms if ledger else 0,
    )


class StoredLedger:
    """One managed ledger."""

    def __init__(self, name: str, rows: LedgerCollection) -> None:
        self.name = name
        self.watches: Watches[Grown] = Watches()
        self.is_deleted = False
        self._rows = rows
        self._open_id = rows.next_ledger_id()
        self._ledgers: dict[int, list[Stored]] = {self._open_id: []}
        self._is_sealed = False
        self._last = Position(self._open_id, -1)
        self._trimmed: EntryRange | None = None
        self._windows: dict[str, Window] = {}

    def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append every entry that is not stored already; refuse all entries or none."""
        if self.is_deleted:
            raise LedgerNotFound(self.name)
        if ledger_id is None and any(entry.branch for entry in entries):
            raise ValueError("an entry with a branch is appended to the ledger that its intent names")
        if self._is_sealed:
            raise LedgerSealed(self.name)
        if ledger_id not in (None, self._open_id):
            raise LedgerClosed(self.name, ledger_id if ledger_id is not None else self._open_id)
        appended = tuple(self._append_one(entry) for entry in entries)
        stored = [(one.position, entry) for one, entry in zip(appended, entries, strict=True) if not one.duplicate]
        if stored:
            self.watches.notify((tuple(LedgerEntry(position, bytes(entry.data)) for position, entry in stored),))
        return appended

    def find_sequence(self, producer: str, sequence: int) -> Appended | None:
        """Return the copy of this sequence, or None."""
        self.require_present()
        for copy in self._windows.get(producer, Window()).overlapping(sequence, sequence):
            return copy.appended()
        return None

    def remembered(self, producer: str, sequence: int) -> WindowState:
        """Return what the ledger remembers about a producer, and how many of its sequences are above ``sequence``."""
        self.require_present()
        return self._windows.get(producer, Window()).remembered(sequence)

    def tail(self) -> Tail:
        """Return the last confirmed position, the open ledger and the sealed flag."""
        if self.is_deleted:
            raise LedgerNotFound(self.name)
        return Tail(self._last, self._open_id, self._is_sealed)

    def ends_by(self, ledger_id: int) -> bool:
        """Return whether no ledger here has a higher id."""
        return self._open_id <= ledger_id

    def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range."""
        self.require_present()
        self._require_untrimmed(entries)
        found: list[LedgerEntry] = []
        size = 0
        for stored in self._entries(entries):
            size += len(stored.data)
            if found and (len(found) == limit.items or size > limit.bytes):
                break
            found.append(LedgerEntry(stored.position, stored.data))
        return tuple(found)

    def count(self, entries: EntryRange, messages_max: int) -> MessageCount:
        """Return how far ``messages_max`` messages reach, in whole entries."""
        self.require_present()
        counted = MessageCount(entries.after, 0)
        for stored in self._entries(entries):
            total = counted.messages + stored.messages
            if counted.messages and total > messages_max:
                break
            counted = MessageCount(stored.position, total, stored.appended_ms)
        return counted

    def ledgers(self, after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """Return the first remaining ledgers after the ledger ``after``."""
        self.require_present()
        left = [ledger_id for ledger_id in self._ledgers if ledger_id > after]
        return tuple(_summary(ledger_id, self._ledgers[ledger_id]) for ledger_id in left[:items_max])

    def find_time(self, published_ms: int) -> Position:
        """Return the position before the first entry published at this time or later."""
        self.require_present()
        for ledger_id, ledger in self._ledgers.items():
            at = bisect_left(ledger, published_ms, key=attrgetter("appended_ms"))
            if at < len(ledger):
                return Position(ledger_id, at - 1)
        return self._last

    def roll(self) -> Tail:
        """Open the next ledger, unless this one is sealed or empty."""
        self.require_present()
        if not self._is_sealed and self._ledgers[self._open_id]:
            self._open_id = self._rows.next_ledger_id()
            self._ledgers[self._open_id] = []
            self.watches.notify((None,))
        return self.tail()

    def seal(self) -> Tail:
        """Refuse appends permanently."""
        self.require_present()
        if not self._is_sealed:
            self._is_sealed = True
            self.watches.notify((None,))
        return self.tail()

    def trim(self, ledger_id: int, aborted: frozenset[Branch]) -> int:
        """
        Remove closed ledgers below ``ledger_id``; return the first remaining id.

        The copies of sequences in the removed ledgers are settled with ``aborted``.
        """
        self.require_present()
        below = [closed for closed in self._ledgers if closed < ledger_id and closed != self._open_id]
        below = below[:LEDGERS_TRIMMED_MAX]
        if below:
            for window in self._windows.values():
                window.settle(below[-1], aborted)
        for closed in below:
            dropped = self._ledgers.pop(closed)
            start = self._trimmed.after if self._trimmed else dropped[0].position
            self._trimmed = EntryRange(start, dropped[-1].position)
        return next(iter(self._ledgers))

    def require_present(self) -> None:
        """Raise LedgerNotFound if this managed ledger was deleted."""
        if self.is_deleted:
            raise LedgerNotFound(self.name)

    def _append_one(self, entry: Append) -> Appended:
        """Append one entry, or report the copy that is already stored."""
        sequence = entry.sequence
        window = self._windows.setdefault(sequence.producer, Window()) if sequence else Window()
        replaced: Copy | None = None
        if sequence:
            for copy in window.overlapping(sequence.first, sequence.last):
                if copy.position != entry.replaces:
                    return copy.appended()
                replaced = copy
        ledger = self._ledgers[self._open_id]
        position = Position(self._open_id, len(ledger))
        ledger.append(Stored(position, bytes(entry.data), entry.messages, self._rows.append_time_ms()))
        self._last = position
        if replaced:
            window.remove(replaced)
        if sequence:
            window.add(Copy(position, entry.branch, sequence))
        if entry.branch:
            self._rows.note_txn(entry.branch)
        return Appended(position)

    def _entries(self, entries: EntryRange) -> Iterator[Stored]:
        """Yield the remaining entries of a range."""
        for ledger_id, ledger in self._ledgers.items():
            if ledger_id > entries.upto.ledger_id:
                return
            if ledger_id < entries.after.ledger_id:
                continue
            first = bisect_right(ledger, entries.after, key=attrgetter("position"))
            for stored in ledger[first:]:
                if stored.position > entries.upto:
                    return
                yield stored

    def _require_untrimmed(self, entries: EntryRange) -> None:
        """Raise EntryTrimmed if entries of the range were trimmed."""
        gone = self._trimmed
        if gone and entries.after < gone.upto and entries.upto >= gone.after and entries.after < entries.upto:
            missing = max(gone.after, Position(entries.after.ledger_id, entries.after.entry_id + 1))
            left = next((stored.position for ledger in self._ledgers.values() for stored in ledger[:1]), None)
            raise EntryTrimmed(self.name, missing, left)


class LedgerCollection:
    """Every managed ledger of a space, by name, and the data that outlives them."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.identity: str | None = None
        self.highest_txn_numbers: dict[int, int] = {}
        self._now_ms = now_ms
        self._appended_ms = 0
        self._ledger_ids = 0
        self._rows: dict[str, StoredLedger] = {}
        self._names: list[str] = []

    def take_identity(self, identity: str) -> None:
        """Belong to a metadata store with another identity from now on."""
        self.identity = identity

    def belong_to(self, identity: str) -> None:
        """Belong to the metadata store with this identity permanently, or raise StoreMismatch."""
        if self.identity not in (None, identity):
            raise StoreMismatch(f"the ledgers belong to {self.identity}, the metadata store is {identity}")
        self.identity = identity

    def create(self, name: str) -> StoredLedger:
        """Return the managed ledger of this name; create it if it does not exist."""
        if name not in self._rows:
            self._rows[name] = StoredLedger(name, self)
            insort(self._names, name)
        return self._rows[name]

    def find(self, name: str) -> StoredLedger:
        """Return the managed ledger of this name, or raise LedgerNotFound."""
        if name not in self._rows:
            raise LedgerNotFound(name)
        return self._rows[name]

    def delete(self, name: str, upto_ledger_id: int | None) -> None:
        """Delete a managed ledger whose open ledger has at most this id; an absent one is ignored."""
        row = self._rows.get(name)
        if row and (upto_ledger_id is None or row.ends_by(upto_ledger_id)):
            del self._rows[name]
            del self._names[bisect_left(self._names, name)]
            row.is_deleted = True
            row.watches.notify((None,))

    def list_names(self, prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        """Return names with this prefix, in order, after ``after``."""
        first = max(bisect_left(self._names, prefix), bisect_right(self._names, after))
        page = self._names[first : first + items_max]
        return tuple(name for name in page if name.startswith(prefix))

    def next_ledger_id(self) -> int:
        """Return an id that no ledger of the space ever had, so that a managed ledger created again repeats none."""
        self._ledger_ids += 1
        return self._ledger_ids

    def append_time_ms(self) -> int:
        """Return the time of an append; it never goes back, so that entries can be searched by time."""
        self._appended_ms = max(self._appended_ms, self._now_ms())
        return self._appended_ms

    def note_txn(self, branch: Branch) -> None:
        """Remember the highest transaction number of each coordinator."""
        coordinator, number = branch.txn_id.coordinator, branch.txn_id.number
        self.highest_txn_numbers[coordinator] = max(number, self.highest_txn_numbers.get(coordinator, 0))
