"""Collections of what ends without a notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOK_MIN = 16


class Remembered(Generic[T]):
    """
    Values in the order of their addition, of which those that ended may be forgotten; ``stands`` shows which did not.

    They are looked at when there are twice as many as the last look left, so that an addition takes constant time.
    """

    def __init__(self, stands: Callable[[T], bool]) -> None:
        self._stands = stands
        self._values: list[T] = []
        self._look_at = _LOOK_MIN

    def add(self, value: T) -> None:
        """Remember a value."""
        self._values.append(value)
        if len(self._values) >= self._look_at:
            self._values = [one for one in self._values if self._stands(one)]
            self._look_at = max(_LOOK_MIN, 2 * len(self._values))

    def __iter__(self) -> Iterator[T]:
        """Return the values that have not ended."""
        return iter([one for one in self._values if self._stands(one)])
