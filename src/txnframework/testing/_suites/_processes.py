"""Shared parts of the suites of the transactional roles: processes, transactions and held steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from txnframework.model import Action, Begin, End, Participant, Transaction, TxnID
from txnframework.testing._suites._base import Suite
from txnframework.testing.connection import HeldStep, StoreConnection
from txnframework.testing.harness import Harness
from txnframework.testing.world import World

T = TypeVar("T")

TIMEOUT_MS = 60_000
YEAR_MS = 365 * 24 * 3600 * 1000


class ProcessRules(Suite):
    """Base class of rules whose harness opens processes over the same stores."""

    data: Harness[World]

    async def forget_ended(self, world: World) -> None:
        """Forget all ended transactions, as if a year had passed."""
        while (await world.coordinator.collect(self.data.now_ms() + YEAR_MS)).done:
            pass


async def begin(world: World, timeout_ms: int = TIMEOUT_MS) -> TxnID:
    """Begin a transaction that is enlisted at this segment and its subscriptions; return its id."""
    txn = await world.coordinator.begin(Begin(timeout_ms))
    names = ("", *world.participants.subscriptions)
    participants = frozenset(Participant(world.buffer.segment, name) for name in names)
    await world.coordinator.enlist(txn.txn_id, participants)
    return txn.txn_id


async def commit(world: World, txn_id: TxnID, *branches: int) -> Transaction:
    """Commit with these branches, or with branch 0, the beginner's, if none is given."""
    return await world.coordinator.end(End(txn_id, Action.COMMIT, branches=frozenset(branches or {0})))


async def abort(world: World, txn_id: TxnID) -> Transaction:
    """Abort the transaction."""
    return await world.coordinator.end(End(txn_id, Action.ABORT))


@asynccontextmanager
async def held_up(
    connection: StoreConnection, step: int, work: Coroutine[Any, Any, T]
) -> AsyncIterator[tuple[asyncio.Task[T], bool]]:
    """
    Run ``work`` up to its ``step``-th step to a store and hold it there.

    Yield its task and whether it reached that step; False means that it ended before. The block releases it with
    ``connection.restore()`` or kills it with ``kill``; the task is cancelled at the end of the block.
    """
    held: HeldStep = connection.hold(step)
    task = asyncio.ensure_future(work)
    reached = asyncio.ensure_future(held.reached.wait())
    try:
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        yield task, held.reached.is_set()
    finally:
        connection.restore()
        for one in (task, reached):
            one.cancel()
        await asyncio.gather(task, reached, return_exceptions=True)


async def kill(world: World, task: asyncio.Task[Any]) -> None:
    """Stop a task as a kill of its process does: no further call of it reaches a store."""
    world.connection.is_cut = True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
