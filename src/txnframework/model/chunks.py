"""
Sorted entries in chunks that never change, so that a change of one entry costs about the same with any number of them.

A chunk knows its text, which is written at most once. A change makes one or two chunks new. The other chunks stay the
same objects, with their texts.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import ClassVar, Generic, Self, TypeVar

from txnframework.model.positions import Position


class Chunk:
    """
    Neighbouring entries of one ledger, in order, with a number for each; at least one.

    ``text``: the chunk as a record holds it, or empty before it was written. Its first entry is written as a position,
    each further one as its distance from the end of the one before.
    """

    __slots__ = ("entries", "ledger_id", "start", "text", "values")

    entries_max: ClassVar[int]

    def __init__(self, ledger_id: int, entries: tuple[int, ...], values: tuple[int, ...], text: str = "") -> None:
        self.ledger_id = ledger_id
        self.entries = entries
        self.values = values
        self.start = ledger_id, entries[0]
        self.text = text

    def __repr__(self) -> str:
        """Return the class and the text."""
        return f"{type(self).__name__}({self.write()!r})"

    def write(self) -> str:
        """Return the text, and keep it."""
        self.text = f"{self.ledger_id}:{' '.join(self._items())}"
        return self.text

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Return the chunk with this text, which matches the pattern of its record."""

    @abstractmethod
    def _items(self) -> Iterator[str]:
        """Yield the text of each entry; the distance of the first one is from entry 0."""

    def replaced(self, begin: int, end: int, entries: tuple[int, ...], values: tuple[int, ...]) -> list[Self]:
        """
        Return this chunk with other entries in the place ``[begin, end)``: no chunk if nothing is left, two if one
        would be too large.

        What comes after the end begins a chunk, because entries are mostly acknowledged in their order.
        """
        entries = self.entries[:begin] + entries + self.entries[end:]
        values = self.values[:begin] + values + self.values[end:]
        if not entries:
            return []
        size = len(entries)
        if size <= self.entries_max:
            return [type(self)(self.ledger_id, entries, values)]
        middle = self.entries_max if begin == len(self.entries) else size // 2
        return [
            type(self)(self.ledger_id, entries[:middle], values[:middle]),
            type(self)(self.ledger_id, entries[middle:], values[middle:]),
        ]


_C = TypeVar("_C", bound=Chunk)


class Chunks(Generic[_C]):
    """
    Chunks in order.

    Two with the same entries and numbers are equal, however the entries are divided.
    """

    __slots__ = ("_count", "chunks")

    def __init__(self, chunks: Iterable[_C] = ()) -> None:
        self.chunks = tuple(chunks)
        self._count = sum(map(len, map(_ENTRIES, self.chunks)))

    def __len__(self) -> int:
        """Return the number of entries with a number."""
        return self._count

    def __eq__(self, other: object) -> bool:
        """Compare only what differs: two cursors with one acknowledgment between them share most chunks."""
        if not isinstance(other, Chunks) or type(other) is not type(self):
            return NotImplemented
        if self._count != len(other):
            return False
        mine, theirs = self.chunks, other.chunks
        alike = _shared(mine, theirs)
        mine, theirs = mine[alike:], theirs[alike:]
        alike = _shared(mine[::-1], theirs[::-1])
        return list(_places(mine[: len(mine) - alike])) == list(_places(theirs[: len(theirs) - alike]))

    def __repr__(self) -> str:
        """Return the class and the texts."""
        return f"{type(self).__name__}({self.texts()!r})"

    def new_since(self, before: Self) -> list[tuple[int, int, int]]:
        """Return ledger, entry id and number of the entries that are not in earlier chunks with the same number."""
        earlier, now = set(map(id, before.chunks)), set(map(id, self.chunks))
        known = set(_places(chunk for chunk in before.chunks if id(chunk) not in now))
        return [one for one in _places(chunk for chunk in self.chunks if id(chunk) not in earlier) if one not in known]

    def texts(self) -> list[str]:
        """Return the chunks as a record holds them."""
        return [chunk.text or chunk.write() for chunk in self.chunks]


def find(chunks: Sequence[_C], entry: Position) -> tuple[int, _C | None, int]:
    """
    Return where an entry belongs: a chunk of its ledger, and how many entries of the chunk are not after it.

    Only in the ledger's first chunk all of them may be. The first result is the number of the chunk, or, if the ledger
    has no chunk, of the place for one.
    """
    at = bisect_right(chunks, (entry.ledger_id, entry.entry_id), key=_START)
    if at and chunks[at - 1].ledger_id == entry.ledger_id:
        chunk = chunks[at - 1]
        return at - 1, chunk, bisect_right(chunk.entries, entry.entry_id)
    if at < len(chunks) and chunks[at].ledger_id == entry.ledger_id:
        return at, chunks[at], 0
    return at, None, 0


def divided(kind: type[_C], items: Iterable[tuple[int, int, int]]) -> Iterator[_C]:
    """Yield the chunks of items in order, each of which is a ledger, an entry of it, and a number."""
    some: list[tuple[int, int, int]] = []
    for item in items:
        if some and (item[0] != some[0][0] or len(some) == kind.entries_max):
            yield _made(kind, some)
            some = []
        some.append(item)
    if some:
        yield _made(kind, some)


def _made(kind: type[_C], some: Sequence[tuple[int, int, int]]) -> _C:
    return kind(some[0][0], tuple(one[1] for one in some), tuple(one[2] for one in some))


def _shared(some: Sequence[_C], others: Sequence[_C]) -> int:
    """Return the number of chunks at the beginning that are the same objects."""
    differences = (at for at, (one, other) in enumerate(zip(some, others, strict=False)) if one is not other)
    return next(differences, min(len(some), len(others)))


def _places(chunks: Iterable[Chunk]) -> Iterator[tuple[int, int, int]]:
    for chunk in chunks:
        for entry_id, value in zip(chunk.entries, chunk.values, strict=True):
            yield chunk.ledger_id, entry_id, value


_START = attrgetter("start")
_ENTRIES = attrgetter("entries")
