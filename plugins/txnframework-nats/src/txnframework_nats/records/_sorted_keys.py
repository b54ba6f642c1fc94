"""A sorted collection for many keys: adding and removing one moves only a bounded number of others."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Any)

_BLOCK_MAX = 1_024


class SortedKeys(Generic[K]):
    """Different keys in order, in blocks of bounded size; ``_firsts`` are the first keys of the blocks."""

    def __init__(self) -> None:
        self._blocks: list[list[K]] = []
        self._firsts: list[K] = []
        self._count = 0

    def add(self, key: K) -> None:
        """Add a key that is not contained."""
        self._count += 1
        if not self._blocks:
            self._blocks.append([key])
            self._firsts.append(key)
            return
        at = self._block_of(key)
        block = self._blocks[at]
        insort(block, key)
        self._firsts[at] = block[0]
        if len(block) > _BLOCK_MAX:
            half = len(block) // 2
            self._blocks.insert(at + 1, block[half:])
            self._firsts.insert(at + 1, block[half])
            del block[half:]

    def remove(self, key: K) -> None:
        """Remove a key that is contained."""
        at = self._block_of(key)
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        self._count -= 1
        if block:
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._firsts[at]

    def from_(self, key: K) -> Iterator[K]:
        """Return the keys from ``key`` on, in order; the collection must not change meanwhile."""
        if not self._blocks:
            return
        at = self._block_of(key)
        start = bisect_left(self._blocks[at], key)
        while at < len(self._blocks):
            block = self._blocks[at]
            for position in range(start, len(block)):
                yield block[position]
            at, start = at + 1, 0

    def __len__(self) -> int:
        return self._count

    def _block_of(self, key: K) -> int:
        """Return the number of the block in which a key is, or would be."""
        at = bisect_left(self._firsts, key)
        if at < len(self._firsts) and self._firsts[at] == key:
            return at
        return max(0, at - 1)
