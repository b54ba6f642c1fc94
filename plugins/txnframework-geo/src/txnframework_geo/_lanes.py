"""
Which transactions can be copied now, so that none is torn and each key keeps its order. Pure.

A *unit* is copied whole or not at all: a transaction, or an entry that was sent outside of transactions. A *lane* is
the messages of one key of one topic, in their order, parents of a segment before its children. Units that cannot be
copied yet are hidden, and everything behind them in one of their lanes is hidden with them. So what is copied of a lane
is always its beginning.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from txnframework.model.ids import TxnID
from txnframework.model.positions import Position

Unit = TxnID | tuple[str, Position]
"""A transaction, or the segment and position of an entry that was sent outside of transactions."""


class Lanes:
    """The units in each lane, in the order in which they were added."""

    def __init__(self) -> None:
        self._units: dict[Hashable, list[Unit]] = {}
        self._firsts: dict[Unit, dict[Hashable, int]] = {}

    def add(self, unit: Unit, lane: Hashable) -> None:
        """Add a message of a unit at the end of a lane."""
        units = self._units.setdefault(lane, [])
        self._firsts.setdefault(unit, {}).setdefault(lane, len(units))
        units.append(unit)

    def hidden_with(self, units: Iterable[Unit]) -> set[Unit]:
        """Return these units, and all that have a message behind a hidden one in a lane; each is passed once."""
        found = set(units)
        waiting = list(found)
        cuts: dict[Hashable, int] = {}
        while waiting:
            for lane, first in self._firsts.get(waiting.pop(), {}).items():
                behind = self._units[lane][first : cuts.get(lane)] if first < cuts.get(lane, first + 1) else ()
                if behind:
                    cuts[lane] = first
                new = set(behind) - found
                found |= new
                waiting += new
        return found
