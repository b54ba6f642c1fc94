"""Tracking of the log entries that are still needed."""

from __future__ import annotations

from collections import Counter

from txnframework.model import Position
from txnframework_legacy.log.format import Place


class LiveRecords:
    """
    The needed records of a log, by entry. An entry can be trimmed when none of its records is needed.

    A replay of the log restores this state. Trimming removes whole ledgers: those before the first ledger with a needed
    entry.
    """

    def __init__(self) -> None:
        self._indexes: dict[Position, set[int]] = {}
        self._entries: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._indexes)

    @property
    def records(self) -> int:
        """The number of needed records."""
        return sum(map(len, self._indexes.values()))

    def oldest(self) -> Position | None:
        """Return the position of the first needed record, with its index in the entry; None if no record is needed."""
        entry = min(self._indexes, default=None)
        return None if entry is None else Position(entry.ledger_id, entry.entry_id, min(self._indexes[entry]))

    def add(self, place: Place) -> None:
        """Mark a record as needed."""
        indexes = self._indexes.get(place.entry)
        if indexes is None:
            indexes = self._indexes[place.entry] = set()
            self._entries[place.entry.ledger_id] += 1
        indexes.add(place.index)

    def discard(self, place: Place) -> None:
        """Mark a record as no longer needed; an unknown record is ignored."""
        indexes = self._indexes.get(place.entry)
        if indexes is None:
            return
        indexes.discard(place.index)
        if not indexes:
            del self._indexes[place.entry]
            self._entries[place.entry.ledger_id] -= 1
            if not self._entries[place.entry.ledger_id]:
                del self._entries[place.entry.ledger_id]

    def first_ledger(self) -> int | None:
        """Return the first ledger with a needed entry; None if no entry is needed."""
        return min(self._entries, default=None)
