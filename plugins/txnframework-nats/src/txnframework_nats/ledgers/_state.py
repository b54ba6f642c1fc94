"""The state of a managed ledger: what the records of its log make of it, one after another."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from txnframework.errors import EntryTrimmed, LedgerNotFound
from txnframework.model import Appended, Branch, EntryRange, LedgerSummary, Position, Tail, TxnID, WindowState
from txnframework_nats.ledgers._records import (
    Added,
    Asked,
    Created,
    Deleted,
    Forgotten,
    Imported,
    LogRecord,
    Numbering,
    Remembered,
    Rolled,
    Sealed,
    Trimmed,
    branch_of,
)
from txnframework_nats.ledgers._windows import SequenceCopy, SequenceWindow

_PLACES_MAX = 32


class RecordMark(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Where a record of entries is: its first entry, the messages before it, the time of that entry, its number."""

    entry: int
    messages: int
    appended_ms: int
    number: int


class LedgerTotals:
    """
    One ledger of the row, and its totals.

    ``opened``: the number of a message before all of its entries; there is no other record of entries between.
    ``last_number``: of the message with its last entry. ``places``: some of its records, evenly spread, so that an
    entry is found in few reads. ``due``: as many entries are imported.
    """

    def __init__(self, ledger_id: int, appended_ms: int, opened: int, due: int = 0) -> None:
        self.ledger_id = ledger_id
        self.appended_ms = appended_ms
        self.opened = opened
        self.due = due
        self.entries = 0
        self.messages = 0
        self.bytes = 0
        self.last_number = opened
        self.places: list[RecordMark] = []
        self.stride = 1
        self._records = 0

    def add(self, number: int, added: Added, before: int) -> None:
        """Count a record of entries; ``before``: the number of the record before it."""
        if not self._records:
            self.opened = before
        if self._records % self.stride == 0:
            self.places.append(RecordMark(added.first, added.messages_before, added.appended_ms, number))
            if len(self.places) > _PLACES_MAX:
                self.places = self.places[::2]
                self.stride *= 2
        self._records += 1
        self.entries += len(added.sizes)
        self.messages += added.messages_total
        self.bytes += sum(added.sizes)
        self.appended_ms = added.last_ms
        self.last_number = number

    @property
    def last(self) -> Position:
        """The position of the last entry; the position before the first while it is empty."""
        return Position(self.ledger_id, self.entries - 1)

    def summary(self) -> LedgerSummary:
        """Return the ledger as it is listed."""
        return LedgerSummary(self.ledger_id, self.entries, self.messages, self.bytes, self.appended_ms)

    def pack(self) -> tuple[object, ...]:
        """Return all fields, for a snapshot."""
        return (
            self.ledger_id,
            self.appended_ms,
            self.opened,
            self.due,
            self.entries,
            self.messages,
            self.bytes,
            self.last_number,
            self.places,
            self.stride,
            self._records,
        )

    @classmethod
    def unpack(cls, fields: PackedTotals) -> LedgerTotals:
        """Return the ledger of a snapshot."""
        totals = cls(*fields[:4])
        (
            totals.entries,
            totals.messages,
            totals.bytes,
            totals.last_number,
            totals.places,
            totals.stride,
            totals._records,
        ) = fields[4:]
        return totals


PackedTotals = tuple[int, int, int, int, int, int, int, int, list[RecordMark], int, int]


class LedgerState:
    """
    A managed ledger after the record ``number`` of its log.

    Every process that reads the log gets the same state. ``window``: how many sequences of a producer are remembered.
    ``numbering``: as the first record says.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.name = ""
        self.numbering = Numbering(0, 1)
        self.number = 0
        self.sealed = False
        self.deleted = False
        self.ledgers: list[LedgerTotals] = []
        self.before = Position(0, -1)
        self.trimmed: tuple[Position, Position] | None = None
        self.windows: dict[str, SequenceWindow] = {}

    @property
    def open(self) -> LedgerTotals:
        """The open ledger."""
        return self.ledgers[-1]

    @property
    def last(self) -> Position:
        """The last confirmed position."""
        return self.open.last if self.open.entries else self.before

    def tail(self) -> Tail:
        """Return the end as a ledger reports it."""
        self.require_present()
        return Tail(self.last, self.open.ledger_id, self.sealed)

    def require_present(self) -> None:
        """Raise LedgerNotFound if the managed ledger was deleted."""
        if self.deleted:
            raise LedgerNotFound(self.name)

    def apply(self, number: int, content: LogRecord) -> None:
        """Change the state by the next record of the log, whose message has this number."""
        match content:
            case Created():
                self.name, self.numbering = content.name, content.numbering
                self._open_next(number, 0)
                self.before = self.open.last
            case Imported():
                self._import(number, content)
            case Added():
                self._add(number, content)
            case Remembered():
                self._remember(content)
            case Rolled():
                self._close(number)
            case Sealed():
                self.sealed = True
            case Forgotten():
                self._forget(content)
            case Trimmed():
                self._trim(content)
            case Deleted():
                self.deleted = True
            case Asked():
                pass
        self.number = number

    def find(self, producer: str, first: int, last: int) -> list[SequenceCopy]:
        """Return the copies that hold any of these sequences of a producer, in order."""
        window = self.windows.get(producer)
        return window.overlapping(first, last) if window else []

    def find_sequence(self, producer: str, sequence: int) -> Appended | None:
        """Return the copy of a sequence that counts, or None."""
        self.require_present()
        for copy in self.find(producer, sequence, sequence):
            return copy.appended(producer)
        return None

    def remembered(self, producer: str, sequence: int) -> WindowState:
        """Return what is remembered of a producer."""
        self.require_present()
        return (self.windows.get(producer) or SequenceWindow()).remembered(sequence, self.window)

    def require_untrimmed(self, entries: EntryRange) -> None:
        """Raise EntryTrimmed if entries of the range existed and were trimmed."""
        if self.trimmed is None:
            return
        first, last = self.trimmed
        after, upto = entries.after, entries.upto
        if after < last and upto >= first and after < upto:
            missing = max(first, Position(after.ledger_id, after.entry_id + 1))
            left = next((Position(one.ledger_id, 0) for one in self.ledgers if one.entries), None)
            raise EntryTrimmed(self.name, missing, left)

    @property
    def imported(self) -> Position:
        """The last entry that was imported; the position before the first ledger's first entry if none was."""
        filled = [one.last for one in self.ledgers if one.entries]
        return filled[-1] if filled else Position(self.ledgers[0].ledger_id, -1)

    @property
    def next_import(self) -> Position | None:
        """The entry that has to be imported next; None: the last one was, or the log was not imported."""
        return next((Position(one.ledger_id, one.entries) for one in self.ledgers if one.entries < one.due), None)

    def _import(self, number: int, content: Imported) -> None:
        self.name, self.numbering, self.sealed = content.name, content.numbering, content.sealed
        self.ledgers = [LedgerTotals(one.ledger_id, one.appended_ms, number, one.entries) for one in content.ledgers]
        if content.trimmed is not None:
            self.trimmed = (Position(*content.trimmed[:2]), Position(*content.trimmed[2:]))
        if len(content.ledgers) > 1:
            before = content.ledgers[-2]
            self.before = Position(before.ledger_id, before.entries - 1)
        else:
            self.before = self.trimmed[1] if self.trimmed else Position(self.open.ledger_id, -1)

    def _remember(self, content: Remembered) -> None:
        for one in content.copies:
            window = self.windows.setdefault(content.producers[one.producer], SequenceWindow())
            position = Position(one.ledger_id, one.entry_id)
            window.add(SequenceCopy(one.first, one.last, position, branch_of(one)))
            window.appended_ms = max(window.appended_ms, one.appended_ms)

    def _add(self, number: int, added: Added) -> None:
        opened = next((one for one in self.ledgers if one.ledger_id == added.into), self.open)
        for origin in added.origins:
            if origin.producer < 0:
                continue
            position = Position(opened.ledger_id, added.first + origin.entry)
            copy = SequenceCopy(origin.first, origin.last, position, branch_of(origin))
            window = self.windows.setdefault(added.producers[origin.producer], SequenceWindow())
            window.put(copy, self.window)
            window.appended_ms = added.appended_ms
        opened.add(number, added, self.number)
        if added.closes:
            self._close(number)

    def _close(self, number: int) -> None:
        self.before = self.last
        self._open_next(number, self.open.appended_ms)

    def _open_next(self, number: int, appended_ms: int) -> None:
        self.ledgers.append(LedgerTotals(self.numbering.ledger_id(number), appended_ms, number))

    def _forget(self, forgotten: Forgotten) -> None:
        aborted = _branches(forgotten.aborted)
        for window in self.windows.values():
            window.forget(forgotten.below, aborted)

    def _trim(self, trimmed: Trimmed) -> None:
        gone = [one for one in self.ledgers[:-1] if one.ledger_id < trimmed.below]
        if gone:
            self.ledgers = self.ledgers[len(gone) :]
            # Only ledgers with entries are ever closed.
            start = self.trimmed[0] if self.trimmed else Position(gone[0].ledger_id, 0)
            self.trimmed = (start, gone[-1].last)
            aborted = _branches(trimmed.aborted)
            for window in self.windows.values():
                window.settle(gone[-1].ledger_id + 1, aborted)
        for producer in trimmed.silent:
            self.windows.pop(producer, None)
        self.windows = {producer: window for producer, window in self.windows.items() if window.copies}


def _branches(named: Iterable[tuple[str, int]]) -> frozenset[Branch]:
    return frozenset(Branch(TxnID.parse(txn), number) for txn, number in named)
