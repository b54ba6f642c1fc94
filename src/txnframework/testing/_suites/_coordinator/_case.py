"""Shared parts of the rules of coordinators."""

from __future__ import annotations

from typing import Any, ClassVar

from txnframework.interfaces import IApplicationCoordinator, ICoCommitStore, IJointCoordinator
from txnframework.model import (
    Ack,
    AckRequest,
    Append,
    Begin,
    Branch,
    Position,
    State,
    Transaction,
    TxnID,
)
from txnframework.model.acks import AckState
from txnframework.model.cursor import state_of
from txnframework.model.entries import encode_entry
from txnframework.model.entry_view import EntryMessage
from txnframework.testing._suites._processes import ProcessRules, begin, commit
from txnframework.testing.capabilities import OfKind
from txnframework.testing.world import World

FINAL = (State.COMMITTED, State.ABORTED)
METADATA_FAMILY = OfKind("family", "metadata")
"""In this family, an end only stores the decision, so tests can observe unsettled transactions without a failure."""
LOG_FAMILY = OfKind("family", "log")


class CoordinatorRules(ProcessRules):
    """Base class of the rules of coordinators."""

    capabilities: ClassVar[tuple[Any, ...]] = (
        IApplicationCoordinator, IJointCoordinator, ICoCommitStore, METADATA_FAMILY, LOG_FAMILY,
    )  # fmt: skip

    def subjects(self, opened: World) -> tuple[object, ...]:
        """Return the objects that may declare capabilities: the coordinator and the store."""
        return (opened.coordinator, opened.store)


async def open_for(world: World, timeout_ms: int, principal: str = "") -> Transaction:
    """Begin a transaction with this timeout."""
    return await world.coordinator.begin(Begin(timeout_ms, principal))


async def state_in(world: World, txn_id: TxnID) -> State:
    """Return a transaction's state as this process sees it."""
    return (await world.coordinator.describe(txn_id)).state


async def outcome(world: World, txn_id: TxnID) -> State:
    """Return the outcome of a transaction, which must have ended."""
    state = await state_in(world, txn_id)
    assert state in FINAL
    return state


async def write(world: World, txn_id: TxnID, text: str = "x", branch: int = 0) -> Position:
    """Publish one message in a branch."""
    inside = Branch(txn_id, branch)
    data = encode_entry([EntryMessage(None, text.encode(), (), 0, 0)], "suite", inside)
    (appended,) = await world.buffer.append((Append(data, 1, inside, None),))
    return appended.position


async def committed_entry(world: World) -> Position:
    """Publish an entry that can be acknowledged; return its position."""
    txn = await begin(world)
    position = await write(world, txn)
    await commit(world, txn)
    await world.coordinator.settle(txn)
    return position


async def acknowledge(world: World, txn_id: TxnID, position: Position, branch: int = 0) -> None:
    """Acknowledge one entry in a branch."""
    incarnation = (await world.cursor.load()).incarnation
    await world.acks.add(AckRequest(Branch(txn_id, branch), (Ack(position),), incarnation))


async def is_acknowledged(world: World, position: Position) -> bool:
    """Return whether the cursor has acknowledged this entry."""
    return state_of(await world.cursor.load(), position) is AckState.DELETED
