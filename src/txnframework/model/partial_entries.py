"""Entries of which some messages are acknowledged beyond the mark-delete position; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import ClassVar, Self

from txnframework.model.chunks import Chunk, Chunks, divided, find
from txnframework.model.positions import Position


class PartialChunk(Chunk):
    """
    Neighbouring entries that are partly acknowledged; bit n of an entry's number stands for the message with index n.

    Text ``4:9/5 3/2``: of ledger 4 the messages 0 and 2 of entry 9, and message 1 of entry 12.
    """

    __slots__ = ()

    entries_max: ClassVar[int] = 16

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the entries with this text."""
        ledger_id, _, items = text.partition(":")
        entries, values, entry = [], [], 0
        for item in items.split(" "):
            distance, _, bits = item.partition("/")
            entry += int(distance)
            entries.append(entry)
            values.append(int(bits, 16))
        return cls(int(ledger_id), tuple(entries), tuple(values), text)

    def _items(self) -> Iterator[str]:
        before = 0
        for entry, bits in zip(self.entries, self.values, strict=True):
            yield f"{entry - before}/{bits:x}"
            before = entry


class PartialEntries(Chunks[PartialChunk], Mapping[Position, frozenset[int]]):
    """The indexes of the acknowledged messages, by entry, in order."""

    __slots__ = ()

    @classmethod
    def of(cls, entries: Mapping[Position, frozenset[int]]) -> Self:
        """Return these entries, each with at least one index."""
        found = sorted(entries.items())
        return cls(divided(PartialChunk, ((at.ledger_id, at.entry_id, bits_of(some)) for at, some in found)))

    def __eq__(self, other: object) -> bool:
        """Return whether another mapping has the same indexes."""
        return Chunks.__eq__(self, other) if isinstance(other, PartialEntries) else Mapping.__eq__(self, other)

    def __iter__(self) -> Iterator[Position]:
        """Yield the entries."""
        for chunk in self.chunks:
            for entry_id in chunk.entries:
                yield Position(chunk.ledger_id, entry_id)

    def __getitem__(self, entry: Position) -> frozenset[int]:
        """Return the acknowledged indexes of an entry."""
        bits = self.bits(entry)
        if not bits:
            raise KeyError(entry)
        return frozenset(index for index, bit in enumerate(f"{bits:b}"[::-1]) if bit == "1")

    def bits(self, entry: Position) -> int:
        """Return a number with the bits of the acknowledged indexes of an entry."""
        _, chunk, index = find(self.chunks, entry)
        return chunk.values[index - 1] if chunk and index and chunk.entries[index - 1] == entry.entry_id else 0

    @property
    def last(self) -> Position:
        """The last acknowledged message; there must be one."""
        chunk = self.chunks[-1]
        return Position(chunk.ledger_id, chunk.entries[-1], chunk.values[-1].bit_length() - 1)

    def changed(self, changes: Mapping[Position, int]) -> PartialEntries:
        """Return the entries with other bits for some; those without a bit are left out."""
        if not changes or not (self.chunks or any(changes.values())):
            return self
        chunks = list(self.chunks)
        for entry, bits in changes.items():
            at, chunk, index = find(chunks, entry)
            if chunk is None:
                chunks[at:at] = [PartialChunk(entry.ledger_id, (entry.entry_id,), (bits,))] if bits else []
                continue
            begin = index - 1 if index and chunk.entries[index - 1] == entry.entry_id else index
            if (chunk.values[begin] if begin < index else 0) != bits:
                after = ((entry.entry_id,), (bits,)) if bits else ((), ())
                chunks[at : at + 1] = chunk.replaced(begin, index, *after)
        return PartialEntries(chunks)

    def beyond(self, mark: Position) -> PartialEntries:
        """Return the entries beyond the mark-delete position."""
        if not self.chunks or self.chunks[0].start > (mark.ledger_id, mark.entry_id):
            return self
        at, chunk, index = find(self.chunks, mark)
        if chunk is None:
            return PartialEntries(self.chunks[at:])
        return PartialEntries([*chunk.replaced(0, index, (), ()), *self.chunks[at + 1 :]])


def bits_of(indexes: Iterable[int]) -> int:
    """Return a number with a bit for each index."""
    return reduce(or_, (1 << index for index in indexes), 0)


def bits_up_to(index: int) -> int:
    """Return a number with a bit for each index up to this one."""
    return (1 << (index + 1)) - 1
