"""Confirmed messages that may not be read yet, because an open transaction wrote the first of them."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.broker.segments import OpenSegment
from txnframework.model.entries import EntryView
from txnframework.model.ids import TxnID
from txnframework.model.positions import EntryRange, Limit, Position

COUNT_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class UndecidedMessages:
    """
    The confirmed messages of one segment that may not be read, because the open transaction ``txn_id`` wrote the first.

    Aborted messages among them are counted, too.
    """

    segment: str
    messages: int
    txn_id: TxnID


async def undecided_after(opened: OpenSegment, readable: Position) -> UndecidedMessages | None:
    """Return what waits for an open transaction; ``readable`` is a max read position that was read before this call."""
    tail = (await opened.ledger.tail()).last_confirmed
    if tail <= readable:
        return None
    first = next(iter(await opened.ledger.read(EntryRange(readable, tail), Limit(1))), None)
    branch = None if first is None else EntryView(first.data, first.position, opened.name).branch
    if branch is None or branch.is_control:
        return None  # it was stored after the position was read: nothing holds it back
    return UndecidedMessages(opened.name, await count_messages(opened, readable, tail), branch.txn_id)


async def count_messages(opened: OpenSegment, after: Position, upto: Position) -> int:
    """Return the number of stored messages after one position, up to and including another."""
    if after >= upto:
        return 0
    return (await opened.ledger.count(EntryRange(after, upto), COUNT_MAX)).messages
