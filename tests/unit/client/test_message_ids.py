"""The order of messages' ids."""

from __future__ import annotations

import pytest

from txnframework import MessageID, Position

FIRST, SECOND = MessageID("one", Position(0, 3, 1)), MessageID("one", Position(0, 10, 0))


def test_ids_of_one_segment_are_in_its_order() -> None:
    """Ids are ordered by number, not by text."""
    assert FIRST < SECOND
    assert FIRST <= SECOND
    assert SECOND > FIRST
    assert SECOND >= FIRST
    assert FIRST <= MessageID("one", Position(0, 3, 1)) >= FIRST
    assert not SECOND < FIRST
    assert sorted([SECOND, FIRST]) == [FIRST, SECOND]


def test_what_has_no_order_is_refused() -> None:
    """Ids of two segments can only be compared for equality."""
    other = MessageID("two", Position(0, 3, 1))
    assert other != FIRST
    for compare in (FIRST.__lt__, FIRST.__le__, FIRST.__gt__, FIRST.__ge__):
        with pytest.raises(TypeError, match="two segments"):
            compare(other)
    with pytest.raises(TypeError, match="Position"):
        FIRST.__lt__(Position(0, 3, 1))  # type: ignore[arg-type]
