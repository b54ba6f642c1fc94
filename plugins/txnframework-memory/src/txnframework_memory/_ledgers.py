"""Managed ledgers and their deduplication windows; every change is one step without an await."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from operator import attrgetter

from txnframework.errors import (
    EntryTrimmed,
    InvalidInput,
    LedgerClosed,
    LedgerNotFound,
    LedgerSealed,
    StoreMismatch,
)
from txnframework.model import (
    Append,
    Appended,
    Branch,
    EntryRange,
    LedgerEntry,
    LedgerShape,
    LedgerSummary,
    Limit,
    MessageCount,
    Position,
    RememberedSequence,
    StoredEntry,
    Tail,
    WindowState,
)
from txnframework_memory._link import Grown, Watches
from txnframework_memory._windows import Copy, Window

LEDGERS_TRIMMED_MAX = 100
"""The most ledgers that one call of ``trim`` removes."""


def _summary(ledger_id: int, ledger: list[StoredEntry]) -> LedgerSummary:
    return LedgerSummary(
        ledger_id,
        len(ledger),
        sum(stored.messages for stored in ledger),
        sum(len(stored.data) for stored in ledger),
        ledger[-1].appended_ms if ledger else 0,
    )


class StoredLedger:
    """One managed ledger."""

    def __init__(self, name: str, rows: LedgerCollection, shape: LedgerShape | None = None) -> None:
        self.name = name
        self.watches: Watches[Grown] = Watches()
        self.is_deleted = False
        self._rows = rows
        shape = shape or LedgerShape((LedgerSummary(rows.next_ledger_id(), 0, 0, 0, 0),), False)
        self._shape = shape
        self._ledgers: dict[int, list[StoredEntry]] = {one.ledger_id: [] for one in shape.ledgers}
        self._open_id = shape.ledgers[-1].ledger_id
        self._is_sealed = shape.sealed
        self._last = shape.ledgers[-1].last if shape.ledgers[-1].entries else shape.before_open
        self._trimmed = EntryRange(*shape.trimmed) if shape.trimmed else None
        self._windows: dict[str, Window] = {}

    def is_of(self, rows: LedgerCollection) -> bool:
        """Return whether these rows have it, or had it before it was deleted."""
        return self._rows is rows

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

    def require_unsealed(self) -> None:
        """
        Append nothing.

        :raises LedgerNotFound: this managed ledger was deleted.
        :raises LedgerSealed: ``append`` would raise it.
        """
        self.require_present()
        if self._is_sealed:
            raise LedgerSealed(self.name)

    def foresee(self, count: int) -> tuple[Appended, ...]:
        """Return what becomes of the next entries, if these are appended together."""
        start = len(self._ledgers[self._open_id])
        return tuple([Appended(Position(self._open_id, start + at)) for at in range(count)])

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
        return tuple(LedgerEntry(stored.position, stored.data) for stored in self.stored_entries(entries, limit))

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

    # -- copies of the whole store ----------------------------------------------------------------------

    def shape(self) -> LedgerShape:
        """Return everything but the entries and the windows."""
        trimmed = (self._trimmed.after, self._trimmed.upto) if self._trimmed else None
        return LedgerShape(self.ledgers(-1, len(self._ledgers)), self._is_sealed, trimmed)

    def stored_entries(self, entries: EntryRange, limit: Limit) -> tuple[StoredEntry, ...]:
        """Return the first entries of the range, with their times."""
        return tuple(takewhile(Budget(limit).fits, self._entries(entries)))

    def sequences(self, after: RememberedSequence | None, items_max: int) -> tuple[RememberedSequence, ...]:
        """Return the first copies in the windows behind ``after``."""
        start = ("", -1) if after is None else (after.sequence.producer, after.sequence.last)
        # When a copy was appended is not stored; the last time is safe.
        now_ms = self._rows.appended_ms
        behind = (
            RememberedSequence(copy.sequence, copy.position, copy.branch, now_ms)
            for producer, window in sorted(self._windows.items())
            for copy in window.copies
            if (producer, copy.sequence.last) > start
        )
        return tuple(islice(behind, items_max))

    def imported(self) -> Position:
        """Return the last entry that was imported."""
        stored = [ledger[-1].position for ledger in self._ledgers.values() if ledger]
        return stored[-1] if stored else self._shape.whole.after

    def import_entries(self, entries: tuple[StoredEntry, ...]) -> None:
        """Add entries directly behind those that were imported, all or none."""
        last = self.imported()
        for entry in entries:
            if entry.position != self._shape.following(last):
                raise InvalidInput(f"entry {entry.position} of {self.name} does not follow {last}")
            last = entry.position
        for entry in entries:
            self._ledgers[entry.position.ledger_id].append(entry)
            self._rows.appended_ms = max(self._rows.appended_ms, entry.appended_ms)

    def import_sequences(self, sequences: tuple[RememberedSequence, ...]) -> None:
        """Add copies to the windows, but for those that are there."""
        for one in sequences:
            window = self._windows.setdefault(one.sequence.producer, Window())
            if not window.overlapping(one.sequence.first, one.sequence.last):
                window.add(Copy(one.position, one.branch, one.sequence))

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
        ledger.append(StoredEntry(position, bytes(entry.data), entry.messages, self._rows.append_time_ms()))
        self._last = position
        if replaced:
            window.remove(replaced)
        if sequence:
            window.add(Copy(position, entry.branch, sequence))
        if entry.branch:
            self._rows.note_txn(entry.branch)
        return Appended(position)

    def _entries(self, entries: EntryRange) -> Iterator[StoredEntry]:
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


class Budget:
    """What is left of a limit; the first entry always fits."""

    def __init__(self, limit: Limit) -> None:
        self._items, self._bytes = limit.items, limit.bytes
        self._is_begun = False

    def fits(self, entry: StoredEntry) -> bool:
        """Return whether an entry still fits, and count it."""
        self._items -= 1
        self._bytes -= len(entry.data)
        first, self._is_begun = not self._is_begun, True
        return first or (self._items >= 0 and self._bytes >= 0)


class LedgerCollection:
    """Every managed ledger of a space, by name, and the data that outlives them."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.identity: str | None = None
        self.highest_txn_numbers: dict[int, int] = {}
        self._now_ms = now_ms
        self.appended_ms = 0
        self.last_ledger_id = 0
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

    def import_row(self, name: str, shape: LedgerShape) -> Position:
        """Create a managed ledger of a shape, or find it; return the last entry that was imported."""
        if name not in self._rows:
            self._rows[name] = StoredLedger(name, self, shape)
            insort(self._names, name)
        return self._rows[name].imported()

    def skip(self, ledger_id: int, txn_numbers: dict[int, int]) -> None:
        """Give no ledger id up to ``ledger_id``, and raise the highest transaction numbers."""
        self.last_ledger_id = max(self.last_ledger_id, ledger_id)
        for coordinator, number in txn_numbers.items():
            self.highest_txn_numbers[coordinator] = max(number, self.highest_txn_numbers.get(coordinator, 0))

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
        self.last_ledger_id += 1
        return self.last_ledger_id

    def append_time_ms(self) -> int:
        """Return the time of an append; it never goes back, so that entries can be searched by time."""
        self.appended_ms = max(self.appended_ms, self._now_ms())
        return self.appended_ms

    def note_txn(self, branch: Branch) -> None:
        """Remember the highest transaction number of each coordinator."""
        coordinator, number = branch.txn_id.coordinator, branch.txn_id.number
        self.highest_txn_numbers[coordinator] = max(number, self.highest_txn_numbers.get(coordinator, 0))
