"""Which entries of a log are still needed."""

from __future__ import annotations

from collections import Counter

from txnframework.model import Position
from txnframework_legacy.log.format import Place


class LiveRecords:
    """
    The records of a log that are needed, by entry: an entry can go when none of its records is left here.

    Found again by replaying. Whole ledgers go, those in front of the first one with an entry that is needed.
    """

    def __init__(self) -> None:
        self._indexes: dict[Position, set[int]] = {}
        self._entries: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._indexes)

    @property
    def records(self) -> int:
        """How many records are needed."""
        return sum(map(len, self._indexes.values()))

    def oldest(self) -> Position | None:
        """Return where the first record that is needed stands, with its index in the entry; None: none is."""
        entry = min(self._indexes, default=None)
        return None if entry is None else Position(entry.ledger_id, entry.entry_id, min(self._indexes[entry]))

    def add(self, place: Place) -> None:
        """A record is needed."""
        indexes = self._indexes.get(place.entry)
        if indexes is None:
            indexes = self._indexes[place.entry] = set()
            self._entries[place.entry.ledger_id] += 1
        indexes.add(place.index)

    def discard(self, place: Place) -> None:
        """A record is needed no more; one that is not known is fine."""
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
        """Return the first ledger with an entry that is needed; None: none is."""
        return min(self._entries, default=None)
