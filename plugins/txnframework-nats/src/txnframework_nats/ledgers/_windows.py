"""The sequences that a managed ledger remembers of each producer, and where their copies are."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from operator import attrgetter

import msgspec

from txnframework.model import Appended, Branch, Position, ProducerSequence, WindowState

_FIRST = attrgetter("first")


class SequenceCopy(msgspec.Struct, frozen=True, gc=False):
    """Sequences ``first`` to ``last`` of a producer are stored at ``position``."""

    first: int
    last: int
    position: Position
    branch: Branch | None = None

    @property
    def size(self) -> int:
        """The number of its sequences."""
        return self.last - self.first + 1

    def appended(self, producer: str) -> Appended:
        """Return the copy as a ledger reports it."""
        return Appended(self.position, True, self.branch, ProducerSequence(producer, self.first, self.last))


class SequenceWindow:
    """The copies of one producer, by first sequence; no two of them overlap."""

    def __init__(self, copies: Iterable[SequenceCopy] = (), appended_ms: int = 0) -> None:
        self.copies = list(copies)
        self.appended_ms = appended_ms
        self._sequences = sum(copy.size for copy in self.copies)

    def overlapping(self, first: int, last: int) -> list[SequenceCopy]:
        """Return the copies that hold any of these sequences, in order."""
        at = bisect_right(self.copies, first, key=_FIRST)
        if at and self.copies[at - 1].last >= first:
            at -= 1
        return self.copies[at : bisect_right(self.copies, last, key=_FIRST)]

    def put(self, copy: SequenceCopy, size: int) -> None:
        """Remember a copy in place of those it overlaps; forget the lowest ones that exceed ``size`` sequences."""
        for replaced in self.overlapping(copy.first, copy.last):
            self.copies.remove(replaced)
            self._sequences -= replaced.size
        insort(self.copies, copy, key=_FIRST)
        self._sequences += copy.size
        exceeding = 0
        while self._sequences - self.copies[exceeding].size >= size:
            self._sequences -= self.copies[exceeding].size
            exceeding += 1
        del self.copies[:exceeding]

    def add(self, copy: SequenceCopy) -> None:
        """Remember a copy of another store, unless any of its sequences is remembered; forget none."""
        if not self.overlapping(copy.first, copy.last):
            insort(self.copies, copy, key=_FIRST)
            self._sequences += copy.size

    def forget(self, below: int, aborted: frozenset[Branch]) -> None:
        """Forget the copies of aborted branches in ledgers below ``below``."""
        self.copies = [copy for copy in self.copies if copy.branch not in aborted or copy.position.ledger_id >= below]
        self._sequences = sum(copy.size for copy in self.copies)

    def settle(self, below: int, aborted: frozenset[Branch]) -> None:
        """Forget the copies of aborted branches in ledgers below ``below``; the other copies there count."""
        self.forget(below, aborted)
        self.copies = [
            msgspec.structs.replace(copy, branch=None) if copy.branch and copy.position.ledger_id < below else copy
            for copy in self.copies
        ]

    def branches_below(self, ledger_id: int) -> set[Branch]:
        """Return the branches with copies in ledgers below an id."""
        return {copy.branch for copy in self.copies if copy.branch and copy.position.ledger_id < ledger_id}

    def remembered(self, sequence: int, size: int) -> WindowState:
        """Return what is remembered, and how many sequences above ``sequence``."""
        above = sum(copy.last - max(copy.first - 1, sequence) for copy in self.copies if copy.last > sequence)
        return WindowState(size, self.copies[-1].last if self.copies else None, above)
