"""The deduplication windows of managed ledgers."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field, replace
from operator import attrgetter

from txnframework.model import Appended, Branch, Position, ProducerSequence, WindowState

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
