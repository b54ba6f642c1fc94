"""Which cursors are valid for a segment."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from txnframework.broker.segment_ends import verify_cursor
from txnframework.errors import StoreMismatch
from txnframework.model import Position, Tail
from txnframework.model.cursor import Cursor
from txnframework.model.entry_ranges import EntryRanges
from txnframework.model.partial_entries import PartialEntries

END = Position(2, 3)


class Fixed:
    """A cursor and a ledger that do not change."""

    subscription = "billing"
    name = "a segment"

    def __init__(self, cursor: Cursor | None, tail: Tail) -> None:
        self._cursor = cursor
        self._tail = tail

    async def read(self) -> Cursor | None:
        return self._cursor

    async def tail(self) -> Tail:
        return self._tail


def _check(cursor: Cursor | None, open_ledger_id: int = 2) -> None:
    fixed = cast(Any, Fixed(cursor, Tail(END, open_ledger_id, sealed=False)))
    asyncio.run(verify_cursor(fixed, fixed))


@pytest.mark.parametrize(
    "cursor",
    [
        Cursor(1, Position(2, 4)),
        Cursor(1, Position(2, 0), EntryRanges.of([(Position(2, 2), Position(2, 4))])),
        Cursor(1, Position(2, 0), partial=PartialEntries.of({Position(2, 4): frozenset({0})})),
    ],
)
def test_a_cursor_that_is_ahead(cursor: Cursor) -> None:
    """A cursor may be ahead by its mark, by single acks, or by a part of a batch."""
    with pytest.raises(StoreMismatch, match="billing"):
        _check(cursor)


def test_cursors_at_the_end() -> None:
    """A valid cursor is at the last entry, or before the first one of the open ledger."""
    _check(None)
    _check(Cursor(1, END))
    _check(Cursor(1, Position(5, -1)), open_ledger_id=5)
