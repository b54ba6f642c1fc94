"""Telling this process's own changes of a cursor from those of others; pure."""

from __future__ import annotations


class OwnWrites:
    """
    Knows whether what stands in a record is the work of this process alone, since it looked at it last.

    Every write names what it replaced, and a compare-and-set sees to that: so if each of them replaced the one before
    it, nobody else has written in between.
    """

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._others_wrote = True

    def replacing(self, before: bytes | None, after: bytes) -> None:
        """``after`` is about to be written where ``before`` stands."""
        if before is None or before != self._last:
            self._others_wrote = True
        self._last = after

    def looking(self) -> None:
        """The record is about to be read by whoever is interested in what others write."""
        self._others_wrote = False

    def are_all(self, standing: bytes | None) -> bool:
        """Return whether nobody else has written since, if this is what stands."""
        return not self._others_wrote and standing is not None and standing == self._last
