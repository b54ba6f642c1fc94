"""The cost of an acknowledgment beyond many gaps: function calls are compared with and without gaps."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from txnframework.broker import StoredCursor
from txnframework.model.acks import Ack
from txnframework.model.cursor import Cursor, to_record, unite
from txnframework.model.ids import Branch, TxnID
from txnframework.model.metadata import Key, Put, Record
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import encode

HOLES = 9_000
BRANCH = Branch(TxnID(1, 1), 0)
LATER = Ack(Position(1, 2 * HOLES + 5))


class Store:
    """A store of one record, which returns a copy of its value each time, as a server does."""

    def __init__(self, cursor: Cursor) -> None:
        self.record = Record(Key("/cursor"), encode(to_record(cursor)), 1)

    async def get(self, _: Key) -> Record:
        return Record(self.record.key, bytes(bytearray(self.record.value)), self.record.version)

    async def put(self, put: Put) -> int:
        assert put.expected == self.record.version
        self.record = Record(put.key, put.value, self.record.version + 1)
        return self.record.version


async def plainly(cursor: StoredCursor, _: Any) -> None:
    assert await cursor.apply(1, (LATER,), None)


async def in_a_transaction(cursor: StoredCursor, store: Store) -> None:
    assert (await cursor.load()).admits("metadata")
    move = await cursor.plan(1, ((BRANCH, (LATER,)),))
    assert move is not None
    await store.put(move.put)
    await cursor.finish(move, store.record)


Acknowledging = Callable[[StoredCursor, Any], Awaitable[None]]


@pytest.mark.parametrize("acknowledge", [plainly, in_a_transaction])
def test_calls_of_an_acknowledgment(acknowledge: Acknowledging) -> None:
    """With many holes there are few more calls than without: no loop runs over the ranges."""
    few, many = _calls(acknowledge, 0), _calls(acknowledge, HOLES)
    assert many < few + HOLES / 20


def _calls(acknowledge: Acknowledging, holes: int) -> int:
    """Return the calls of an acknowledgment by a process that made the one before, too."""
    acks = [Ack(Position(1, 2 * number)) for number in range(1, holes + 1)]
    store: Any = Store(unite(Cursor(1, EARLIEST), acks))
    calls: Counter[str] = Counter()

    async def test() -> None:
        cursor = StoredCursor(store, "topic://public/default/t", "segment://public/default/t/0000-ffff-0", "s")
        assert await cursor.apply(1, (Ack(Position(1, 2 * HOLES + 2)),), None)
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, argument: calls.update([event]))
        try:
            await acknowledge(cursor, store)
        finally:
            sys.setprofile(before)
        assert LATER.position in [first for first, _ in (await cursor.load()).deleted]

    asyncio.run(test())
    return calls["call"] + calls["c_call"]
