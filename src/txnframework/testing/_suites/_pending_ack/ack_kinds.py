"""Rules of batch indexes, of cumulative acknowledgments and of the messages that these cover."""

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


async def conflict(world: World, txn_id: TxnID, *acks: Ack) -> None:
    """Check that an acknowledgment is a conflict with another transaction or with the cursor."""
    with pytest.raises(TransactionConflict):
        await add(world, txn_id, *acks)


class BatchIndexRules(PendingAckRules):
    """Messages of one entry are acknowledged one by one."""

    async def test_disjoint_indexes(self) -> None:
        """Two transactions may hold different messages of one entry; each is committed or aborted independently."""
        async with self.data.open() as world, self.data.open() as other:
            first, second = await begin(world), await begin(other)
            await add(world, first, part(0, 0, 1))
            await add(other, second, part(0, 2))
            await world.acks.settle(await abort(world, first))
            await world.acks.settle(await commit(other, second))
            indexes = (await world.cursor.load()).partial
            assert indexes == {at(0): frozenset({2})}
            assert await is_free(other, part(0, 0, 1, 3))
            assert not await is_free(other, part(0, 2))

    async def test_overlapping_indexes(self) -> None:
        """A message that two requests name is a conflict, and so is the whole entry, before and after the commit."""
        async with self.data.open() as world, self.data.open() as other:
            holder, late = await begin(world), await begin(other)
            await add(world, holder, part(0, 1, 2))
            await add(world, holder, *single(5))
            ended = None
            for _ in ("open", "committed", "settled"):
                await conflict(other, late, part(0, 2, 3))
                await conflict(other, late, Ack(at(0), BATCH))
                await conflict(other, late, Ack(at(0, 1), BATCH))
                await conflict(other, late, part(5, 0))
                assert await is_free(other, part(0, 0, 3))
                if ended is not None:
                    await world.acks.settle(ended)
                ended = await commit(world, holder)

    async def test_index_in_the_position(self) -> None:
        """A message may be named by its position or by a set of indexes."""
        async with self.data.open() as world:
            holder, late = await begin(world), await begin(world)
            await add(world, holder, Ack(at(0, 1), BATCH))
            await conflict(world, late, part(0, 1))
            await add(world, late, Ack(at(0, 0), BATCH))
            await world.acks.settle(await commit(world, holder))
            assert await deleted(world, at(0, 1), at(0, 0), at(0)) == [True, False, False]

    async def test_all_indexes(self) -> None:
        """An entry is acknowledged when all its messages are, by whichever transactions."""
        async with self.data.open() as world:
            for indexes in ((0, 1), (2,), (3,)):
                assert await deleted(world, at(0)) == [False]
                txn = await begin(world)
                await add(world, txn, part(0, *indexes))
                await world.acks.settle(await commit(world, txn))
            assert await deleted(world, at(0)) == [True]

    async def test_same_indexes_again(self) -> None:
        """Repeating indexes in the same branch succeeds, alone and together with others."""
        async with self.data.open() as world:
            txn = await begin(world)
            for indexes in ((0,), (0,), (0, 1), (1,)):
                await add(world, txn, part(0, *indexes))
            await world.acks.settle(await commit(world, txn))
            assert (await world.cursor.load()).partial == {at(0): frozenset({0, 1})}


class CumulativeRules(PendingAckRules):
    """
    A cumulative acknowledgment covers all messages up to it, moves forward, and belongs to one transaction at a time.
    """

    async def test_moves_forward_only(self) -> None:
        """In one branch, a lower cumulative acknowledgment is a conflict; the same and a higher one succeed."""
        async with self.data.open() as world:
            txn = await begin(world)
            await add(world, txn, upto(3))
            await add(world, txn, upto(3))
            await conflict(world, txn, upto(2))
            await add(world, txn, upto(7))
            await conflict(world, txn, upto(3))
            await world.acks.settle(await commit(world, txn))
            assert (await world.cursor.load()).mark_delete == at(7)

    async def test_one_transaction_at_a_time(self) -> None:
        """While one transaction holds a cumulative acknowledgment, no other may make one, higher or lower."""
        async with self.data.open() as world, self.data.open() as other:
            for end in (abort, commit):
                holder = await begin(world)
                await add(world, holder, upto(5))
                for process in (world, other):
                    for entry in (4, 5, 6):
                        assert not await is_free(process, upto(entry))
                await world.acks.settle(await end(world, holder))
            assert not await is_free(other, upto(5))
            assert await is_free(other, upto(6))

    async def test_behind_a_committed_one(self) -> None:
        """
        A cumulative acknowledgment at or below a committed one, settled or not, is a conflict; one above it is not.
        """
        async with self.data.open() as world, self.data.open() as other:
            holder = await begin(world)
            await add(world, holder, upto(5))
            ended = await commit(world, holder)
            for _ in range(2):
                for process in (world, other):
                    for ack in (upto(4), upto(5), *single(3, 5)):
                        assert not await is_free(process, ack)
                    assert await is_free(process, upto(6))
                    assert await is_free(process, *single(6))
                await other.acks.settle(ended)

    async def test_over_pending_single_ones(self) -> None:
        """
        A cumulative acknowledgment that reaches a message held by another transaction is a conflict; one below it is
        not.
        """
        async with self.data.open() as world, self.data.open() as other:
            holder = await begin(world)
            await add(world, holder, *single(5))
            for entry in (5, 6):
                assert not await is_free(other, upto(entry))
            assert await is_free(other, upto(4))
            await world.acks.settle(await abort(world, holder))
            assert await is_free(other, upto(6))

    async def test_under_a_pending_one(self) -> None:
        """
        Below another transaction's cumulative acknowledgment nothing may be acknowledged; above it everything may.
        """
        async with self.data.open() as world, self.data.open() as other:
            holder = await begin(world)
            await add(world, holder, upto(5))
            for entry in (0, 5):
                assert not await is_free(other, *single(entry))
            assert await is_free(other, *single(6))

    async def test_over_committed_single_ones(self) -> None:
        """
        A cumulative acknowledgment passes over messages that were acknowledged before.

        Naming such a message is a conflict, because another consumer had received it.
        """
        async with self.data.open() as world:
            first, second = await begin(world), await begin(world)
            await add(world, first, *single(0, 2))
            ended = await commit(world, first)
            assert not await is_free(world, upto(0))
            assert not await is_free(world, upto(2))
            await add(world, second, upto(4))
            await world.acks.settle(ended)
            assert not await is_free(world, upto(2))
            await world.acks.settle(await commit(world, second))
            assert (await world.cursor.load()).mark_delete == at(4)

    async def test_both_kinds(self) -> None:
        """A transaction may hold both kinds; a commit applies both, and an abort drops both."""
        async with self.data.open() as world:
            for end in (abort, commit):
                txn = await begin(world)
                await add(world, txn, upto(3), *single(5, 7))
                await world.acks.settle(await end(world, txn))
                wanted = [end is commit] * 3
                assert await deleted(world, at(3), at(5), at(7)) == wanted
            assert await deleted(world, at(4), at(6)) == [False, False]

    async def test_in_mid_batch(self) -> None:
        """A cumulative acknowledgment inside an entry covers the entry's messages up to that index."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            await add(world, txn, upto(3, 1))
            assert not await is_free(other, part(3, 1))
            assert await is_free(other, part(3, 2))
            await world.acks.settle(await commit(world, txn))
            assert await deleted(world, at(2), at(3, 1), at(3, 2)) == [True, True, False]
            assert await is_free(other, part(3, 2, 3))


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

        The message may be a whole entry or a part of a batch. It may be acknowledged outside transactions, or in a
        committed transaction, settled or not. Other acknowledged messages below it are skipped.
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
                async with held_up(world.connection, step, covering) as (task, reached):
                    other_won = await answered(add(other, holder, *single(first)))
                    await other.acks.settle(await commit(other, holder))
                    await self.forget_ended(other)
                    world.connection.restore()
                    won = await task
                assert not (won and other_won), f"counted twice at step {step}"
                assert won or other_won or reached
                await world.acks.settle(await abort(world, late))
