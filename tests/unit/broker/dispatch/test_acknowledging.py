from __future__ import annotations

import asyncio
from typing import Any

import pytest

from txnframework.broker._dispatch.acknowledging import Acknowledging
from txnframework.broker._dispatch.deliveries import Deliveries, HeldMessage
from txnframework.broker._dispatch.open_acks import OpenAcks
from txnframework.broker._dispatch.plain_acks import PlainAcks
from txnframework.model import Ack, Branch, PendingAck, Position, State, TxnID
from txnframework.model.cursor import Cursor
from txnframework.model.entries import EntryMessage
from txnframework.testing.clock import VirtualEnvironment

CURSOR = Cursor(1, Position(0, -1))
EARLIER, HELD, FREE = Position(0, 0), Position(1, 0, 0), Position(1, 1, 0)
TXN = TxnID(0, 7)


@pytest.mark.parametrize("ended", [True, False])
def test_a_plain_acknowledgment_is_dropped_only_if_the_transaction_still_holds_the_message(ended: bool) -> None:
    """Not on the word of the last look: the transaction may have been aborted since, and nobody would hear of it."""

    async def main() -> None:
        deliveries = Deliveries()
        holding = OpenAcks({TXN: (PendingAck(Branch(TXN), Ack(HELD.entry), State.OPEN, 1),)})
        for position in (HELD, FREE):
            deliveries.read(HeldMessage(position, 1, EntryMessage(None, b"", (), 0, 0), "p", None), CURSOR, holding)
        written: list[Position] = []
        looks = 0

        class Cursors:
            async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: object) -> bool:
                written.extend(ack.position for ack in acks)
                return True

        async def look() -> None:
            nonlocal looks
            looks += 1
            deliveries.reconcile(CURSOR, OpenAcks({}) if ended else holding, deliveries.look())

        cursor: Any = Cursors()
        unused: Any = None
        acknowledging = Acknowledging(
            deliveries, PlainAcks(cursor, VirtualEnvironment(), 0), unused, deliveries.forget, look, unused
        )
        await acknowledging.single(((FREE, 1),), 1, None, "", lambda: EARLIER)
        assert (written, looks) == ([FREE.entry], 0)
        await acknowledging.single(((HELD, 1),), 1, None, "", lambda: EARLIER)
        assert (written, looks) == ([FREE.entry, HELD.entry] if ended else [FREE.entry], 1)

    asyncio.run(main())
