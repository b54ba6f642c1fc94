"""Remembered redelivery counts: for unfinished messages under the same cursor, up to a limit."""

from __future__ import annotations

from txnframework.broker.dispatch.delivery_counts import DeliveryCountCache, DeliveryCounts
from txnframework.model import Position
from txnframework.model.cursor import Cursor
from txnframework.model.partial_entries import PartialEntries


def _counts(*entries: int) -> dict[Position, int]:
    return {Position(1, entry, 0): 2 for entry in entries}


def test_counts_hold_under_the_same_cursor_only() -> None:
    """After a seek, counts start anew; finished messages are left out."""
    ended = DeliveryCounts(3, _counts(0, 1, 2))
    assert ended.under(Cursor(4, Position(1, -1))) == {}
    assert ended.under(
        Cursor(3, Position(1, 0), partial=PartialEntries.of({Position(1, 1): frozenset({0})}))
    ) == _counts(2)


def test_the_oldest_are_forgotten_beyond_the_bound() -> None:
    """Whole subscriptions are forgotten at a time; a replaced count is counted once; a used one is removed."""
    remembered = DeliveryCountCache(5)
    remembered.keep(("s", "one"), DeliveryCounts(1, _counts(0, 1, 2)))
    remembered.keep(("s", "one"), DeliveryCounts(1, _counts(0, 1)))
    remembered.keep(("s", "two"), DeliveryCounts(1, _counts(0, 1, 2)))
    remembered.keep(("s", "three"), DeliveryCounts(1))
    assert remembered.take(("s", "two")).counts == _counts(0, 1, 2)
    assert remembered.take(("s", "two")).counts == {}
    remembered.keep(("s", "four"), DeliveryCounts(1, _counts(0, 1, 2, 3)))
    assert remembered.take(("s", "one")).counts == {}
    assert remembered.take(("s", "four")).counts == _counts(0, 1, 2, 3)
    remembered.keep(("s", "five"), DeliveryCounts(1, _counts(0, 1, 2, 3, 4, 5)))
    assert remembered.take(("s", "five")).counts == {}
