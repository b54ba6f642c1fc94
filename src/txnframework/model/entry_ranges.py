"""Ranges of entries that are acknowledged beyond the mark-delete position; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import ClassVar, Self

from txnframework.model.chunks import Chunk, Chunks, divided, find
from txnframework.model.positions import Position

Range = tuple[Position, Position]
"""The first and the last entry of a range, in one ledger."""


class RangeChunk(Chunk):
    """
    Neighbouring ranges; the number of the first entry of each is its last entry.

    Text ``4:9+2 3 2+1``: of ledger 4 the entries 9 to 11, then entry 14, then 16 and 17.
    """

    __slots__ = ()

    entries_max: ClassVar[int] = 64

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the ranges with this text."""
        ledger_id, _, items = text.partition(":")
        entries, values, last = [], [], 0
        for item in items.split(" "):
            distance, _, more = item.partition("+")
            first = last + int(distance)
            last = first + int(more) if more else first
            entries.append(first)
            values.append(last)
        return cls(int(ledger_id), tuple(entries), tuple(values), text)

    def _items(self) -> Iterator[str]:
        before = 0
        for first, last in zip(self.entries, self.values, strict=True):
            yield f"{first - before}" if first == last else f"{first - before}+{last - first}"
            before = last


class EntryRanges(Chunks[RangeChunk]):
    """Inclusive ranges of entries, each within one ledger, sorted, with gaps between them."""

    __slots__ = ()

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> Self:
        """Return ranges that are sorted, with gaps between them."""
        return cls(divided(RangeChunk, ((first.ledger_id, first.entry_id, last.entry_id) for first, last in ranges)))

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges."""
        for chunk in self.chunks:
            for first, last in zip(chunk.entries, chunk.values, strict=True):
                yield Position(chunk.ledger_id, first), Position(chunk.ledger_id, last)

    @property
    def first(self) -> Range:
        """The first range; there must be one."""
        chunk = self.chunks[0]
        return Position(chunk.ledger_id, chunk.entries[0]), Position(chunk.ledger_id, chunk.values[0])

    @property
    def last(self) -> Range:
        """The last range; there must be one."""
        chunk = self.chunks[-1]
        return Position(chunk.ledger_id, chunk.entries[-1]), Position(chunk.ledger_id, chunk.values[-1])

    def holds(self, entry: Position) -> bool:
        """Return whether an entry is in one of the ranges."""
        _, chunk, index = find(self.chunks, entry)
        return chunk is not None and index > 0 and entry.entry_id <= chunk.values[index - 1]

    def adding(self, entries: Iterable[Position]) -> EntryRanges:
        """Return the ranges with these entries as well."""
        chunks = list(self.chunks)
        changes = [_add(chunks, entry) for entry in entries]
        return EntryRanges(chunks) if any(changes) else self

    def beyond(self, mark: Position) -> tuple[Position, EntryRanges]:
        """
        Return the mark-delete position after it has moved over the range that touches it, and the ranges beyond it.

        Positions do not show whether an entry is between two ledgers, so a range in a later ledger does not touch it.
        """
        chunks = self.chunks
        if not chunks or chunks[0].start > (mark.ledger_id, mark.entry_id + 1):
            return mark, self
        passed = 0
        while passed < len(chunks) and (chunks[passed].ledger_id, chunks[passed].values[-1]) <= (
            mark.ledger_id,
            mark.entry_id,
        ):
            passed += 1
        left = list(chunks[passed:])
        if left and left[0].ledger_id == mark.ledger_id:
            chunk = left[0]
            end = bisect_right(chunk.values, mark.entry_id)
            if chunk.entries[end] <= mark.entry_id + 1:
                mark = Position(chunk.ledger_id, chunk.values[end])
                end += 1
            left[:1] = chunk.replaced(0, end, (), ())
        return mark, EntryRanges(left)


def _add(chunks: list[RangeChunk], entry: Position) -> bool:
    """Add an entry, and unite the ranges that it touches; return whether it is new."""
    at, chunk, index = find(chunks, entry)
    ledger_id, entry_id = entry.ledger_id, entry.entry_id
    if chunk is None:
        chunks.insert(at, RangeChunk(ledger_id, (entry_id,), (entry_id,)))
        return True
    begin = end = index
    first = last = entry_id
    if index and chunk.values[index - 1] >= entry_id - 1:
        if chunk.values[index - 1] >= entry_id:
            return False
        begin, first = index - 1, chunk.entries[index - 1]
    if index < len(chunk.entries):
        if chunk.entries[index] == entry_id + 1:
            end, last = index + 1, chunk.values[index]
    elif at + 1 < len(chunks) and chunks[at + 1].start == (ledger_id, entry_id + 1):
        following = chunks[at + 1]
        last = following.values[0]
        chunks[at + 1 : at + 2] = following.replaced(0, 1, (), ())
    chunks[at : at + 1] = chunk.replaced(begin, end, (first,), (last,))
    return True
