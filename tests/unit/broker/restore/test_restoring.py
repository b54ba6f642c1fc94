"""Moving a cursor back: the pure decision."""

from __future__ import annotations

from txnframework.broker.restore.reconciliation import clamp
from txnframework.model import Position
from txnframework.model.cursor import Cursor
from txnframework.model.entry_ranges import EntryRanges
from txnframework.model.partial_entries import PartialEntries


def test_nothing_is_done_beyond_the_end() -> None:
    """Acknowledgments up to the end remain; a range that crosses the end is cut there."""
    end = Position(2, 5)
    within = Cursor(
        1,
        Position(1, 9),
        EntryRanges.of([(Position(2, 1), Position(2, 5))]),
        PartialEntries.of({Position(2, 0): frozenset({1})}),
    )
    assert clamp(within, end) == within
    beyond = Cursor(
        1,
        Position(1, 9),
        EntryRanges.of(
            [(Position(2, 1), Position(2, 2)), (Position(2, 4), Position(2, 8)), (Position(2, 10), Position(2, 11))]
        ),
        PartialEntries.of({Position(2, 3): frozenset({1}), Position(3, 0): frozenset({0})}),
    )
    ranges = EntryRanges.of([(Position(2, 1), Position(2, 2)), (Position(2, 4), end)])
    assert clamp(beyond, end) == Cursor(1, Position(1, 9), ranges, PartialEntries.of({Position(2, 3): frozenset({1})}))
    assert clamp(Cursor(1, Position(4, 0)), end) == Cursor(1, end)
