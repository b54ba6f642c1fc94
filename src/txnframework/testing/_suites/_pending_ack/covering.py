"""Rules of the messages that a cumulative acknowledgment covers: none counts in two committed transactions."""

from __future__ import annotations

import pytest

from txnframework.errors import TransactionConflict
from txnframework.model import Ack, AckRequest, Branch, TxnID
from txnframework.testing._suites._pending_ack._case import (
    BATCH,
    PendingAckRules,
    add,
    at,
    deleted,
    is_free,
    part,
    single,
    upto,
)
from txnframework.testing._suites._pending_ack.races import answered
from txnframework.testing._suites._processes import abort, begin, commit, held_up
from txnframework.testing.world import World

LAST = BATCH - 1


async def cover(world: World, txn_id: TxnID, ack: Ack, *received: Ack) -> None:
    """Acknowledge cumulatively, with ``received`` as the messages that the acknowledgment covers."""
    await world.acks.add(AckRequest(Branch(txn_id), (ack,), 1, received=received))


async def is_refused(world: World, ack: Ack, *received: Ack) -> bool:
    """Return whether such an acknowledgment is a conflict; its transaction is aborted and leaves nothing."""
    txn_id = await begin(world)
    try:
        await cover(world, txn_id, ack, *received)
    except TransactionConflict:
        return True
    finally:
        await world.acks.settle(await abort(world, txn_id))
    return False


class CoveringRules(PendingAckRules):
    """A cumulative acknowledgment covers the messages that its consumer received, and passes over earlier ones."""

    async def test_last_of_a_batch(self) -> None:
        """
        A cumulative acknowledgment that names a message acknowledged by another transaction is refused.

        This holds for a message in the middle of a batch, and for the last one, named by its index or as the whole
        entry.
        """
        async with self.data.open() as world, self.data.open() as other:
            for index in (LAST, 1):
                base = 10 * index
                holder = await begin(world)
                await add(world, holder, part(base, index))
                ended = await commit(world, holder)
                named = [Ack(at(base, index), BATCH, None, True)]
                named += [Ack(at(base), BATCH, None, True)] if index == LAST else []
                for _ in ("committed", "settled"):
                    for process in (world, other):
                        for ack in named:
                            assert await is_refused(process, ack)
                    await world.acks.settle(ended)

    async def test_named_under_an_own_cumulative_one(self) -> None:
        """
        A message named below the transaction's own cumulative acknowledgment is checked on its own.

        It is a conflict if another transaction had acknowledged it and the cumulative one passed over it. Otherwise it
        may be named again.
        """
        async with self.data.open() as world, self.data.open() as other:
            first, second = await begin(other), await begin(world)
            await add(other, first, *single(1), part(2, 0))
            ended = await commit(other, first)
            await add(world, second, upto(4))
            for _ in ("committed", "settled"):
                for ack in (*single(1), part(2, 0), part(2, 0, 1), Ack(at(2), BATCH)):
                    with pytest.raises(TransactionConflict):
                        await add(world, second, ack)
                await add(world, second, *single(0), part(2, 1, 2))
                await world.acks.settle(ended)
            await world.acks.settle(await commit(world, second))
            assert await deleted(world, at(0), at(4)) == [True, True]

    async def test_over_received_ones(self) -> None:
        """
        A cumulative acknowledgment is refused if a message that it covers was already acknowledged; nothing is
        recorded.

        This holds for single messages and parts of batches, and for committed transactions, settled or not, and plain
        acknowledgments. Other acknowledged messages below it are passed over.
        """
        async with self.data.open() as world, self.data.open() as other:
            first = await begin(other)
            await add(other, first, *single(1), part(3, 2))
            ended = await commit(other, first)
            await world.cursor.apply(1, single(5), None)
            for _ in ("committed", "settled"):
                for process in (world, other):
                    for done in (*single(1), part(3, 2), part(3, 0, 2), *single(5)):
                        assert await is_refused(process, upto(6), *single(0), done)
                    assert not await is_refused(process, upto(6), *single(0, 2), part(3, 0, 1, 3))
                    assert await is_free(process, *single(0))
                await other.acks.settle(ended)

    async def test_over_received_ones_of_its_own(self) -> None:
        """
        Messages that the transaction itself named before are no conflict, and repeating the request is none either.
        """
        async with self.data.open() as world:
            txn = await begin(world)
            await add(world, txn, *single(1), part(2, 1))
            for _ in range(2):
                await cover(world, txn, upto(4), *single(0, 1), Ack(at(2), BATCH))
            await cover(world, txn, upto(5), *single(0, 1, 5), Ack(at(2), BATCH))
            await world.acks.settle(await commit(world, txn))
            assert (await world.cursor.load()).mark_delete == at(5)

    async def test_received_ones_are_done_meanwhile(self) -> None:
        """
        A covered message counts once, even if another transaction acknowledges it between two steps of the request.

        That transaction commits, is settled and forgotten meanwhile. If this fails, check the order: received messages
        are checked after the put, with the cursor read last.
        """
        async with self.data.open() as world, self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                first, last = 10 * step, 10 * step + 5
                holder, late = await begin(other), await begin(world)
                covering = answered(cover(world, late, upto(last), *single(first, last)))
                async with held_up(world.line, step, covering) as (task, reached):
                    other_won = await answered(add(other, holder, *single(first)))
                    await other.acks.settle(await commit(other, holder))
                    await self.forget_ended(other)
                    world.line.restore()
                    won = await task
                assert not (won and other_won), f"counted twice at step {step}"
                assert won or other_won or reached
                await world.acks.settle(await abort(world, late))
