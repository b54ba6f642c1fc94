"""Shared parts of the rules of pending-ack stores."""

from __future__ import annotations

from typing import Any, ClassVar

from txnframework.errors import TransactionConflict
from txnframework.interfaces import ISealablePendingAcks
from txnframework.model import Ack, AckRequest, Branch, Position, ProcessedRange, Transaction, TxnID
from txnframework.model.acks import AckState
from txnframework.model.cursor import state_of
from txnframework.testing._suites._processes import ProcessRules, abort, begin
from txnframework.testing.world import World

LEDGER = 0
BATCH = 4
"""The number of messages in an entry that has several."""


class PendingAckRules(ProcessRules):
    """Base class of the rules of pending-ack stores."""

    capabilities: ClassVar[tuple[Any, ...]] = (ISealablePendingAcks,)

    def subjects(self, opened: World) -> tuple[object, ...]:
        """Return the object that may declare capabilities: the store."""
        return (opened.acks, opened.store)


def at(entry: int, index: int = -1) -> Position:
    """Return the position of an entry, or of a message in it."""
    return Position(LEDGER, entry, index)


def single(*entries: int) -> tuple[Ack, ...]:
    """Return acknowledgments of whole entries."""
    return tuple(Ack(at(entry)) for entry in entries)


def part(entry: int, *indexes: int) -> Ack:
    """Return an acknowledgment of some messages of an entry."""
    return Ack(at(entry), BATCH, frozenset(indexes))


def upto(entry: int, index: int = -1) -> Ack:
    """Return a cumulative acknowledgment."""
    return Ack(at(entry, index), BATCH if index >= 0 else 1, None, True)


async def add(
    world: World,
    txn_id: TxnID,
    *acks: Ack,
    branch: int = 0,
    incarnation: int = 1,
    processed: ProcessedRange | None = None,
) -> None:
    """Acknowledge in a transaction's branch."""
    await world.acks.add(AckRequest(Branch(txn_id, branch), acks, incarnation, processed))


async def is_free(world: World, *acks: Ack) -> bool:
    """Return whether a new transaction may acknowledge these now; it is aborted and leaves nothing."""
    txn_id = await begin(world)
    try:
        await add(world, txn_id, *acks, incarnation=(await world.cursor.load()).incarnation)
    except TransactionConflict:
        return False
    finally:
        await world.acks.settle(await abort(world, txn_id))
    return True


async def deleted(world: World, *positions: Position) -> list[bool]:
    """Return for each position whether the cursor has acknowledged it."""
    cursor = await world.cursor.load()
    return [state_of(cursor, position) is AckState.DELETED for position in positions]


async def settle(ended: Transaction, *worlds: World) -> None:
    """Settle an outcome in each of these processes."""
    for world in worlds:
        await world.acks.settle(ended)
