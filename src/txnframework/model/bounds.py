"""Bounds of lists in records that each write replaces as a whole; pure."""

from __future__ import annotations

from collections.abc import Sequence


def count_newest(sizes: Sequence[int], total_max: int, count_min: int) -> int:
    """
    Return how many of the newest items to keep.

    :param sizes: the sizes of all items, the newest last.
    :param total_max: the most that the kept items have together, if they are more than ``count_min``.
    :param count_min: so many are kept in any case.
    """
    total = 0
    for kept, size in enumerate(reversed(sizes)):
        total += size
        if kept >= count_min and total > total_max:
            return kept
    return len(sizes)
