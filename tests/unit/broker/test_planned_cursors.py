"""The starting point of a cursor's plan after a read that a step has overtaken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from txnframework.broker import StoredCursor
from txnframework.model.acks import Ack
from txnframework.model.cursor import Cursor, to_record
from txnframework.model.ids import Branch, TxnID
from txnframework.model.metadata import Key, Record
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import encode

BRANCH = Branch(TxnID(1, 1), 0)


class Store:
    """A store of one record; ``before_reply`` runs after a read, and before its reply."""

    def __init__(self) -> None:
        self.record = Record(Key("/cursor"), encode(to_record(Cursor(1, EARLIEST))), 1)
        self.before_reply: Callable[[], Awaitable[object]] | None = None

    async def get(self, _: Key) -> Record:
        found, meanwhile = self.record, self.before_reply
        self.before_reply = None
        if meanwhile is not None:
            await meanwhile()
        return found


async def test_a_read_that_a_step_overtakes() -> None:
    """The next plan starts from the record of the step, not from the older record of the read."""
    store: Any = Store()
    cursor = StoredCursor(store, "topic://public/default/t", "segment://public/default/t/0000-ffff-0", "s")
    await cursor.read()

    async def step() -> None:
        move = await cursor.plan(1, ((BRANCH, (Ack(Position(1, 1)),)),))
        assert move is not None
        await cursor.finish(move, Record(move.put.key, move.put.value, 2))

    store.before_reply = step
    await cursor.read()
    later = await cursor.plan(1, ((BRANCH, (Ack(Position(1, 3)),)),))
    assert later is not None
    assert later.put.expected == 2
