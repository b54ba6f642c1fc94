"""Rules of settle and recover: the cursor is written before records are deleted, and recovery finishes the rest."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import Closed, TransactionConflict, TxnFrameworkError, Unavailable
from txnframework.model import Branch, ProcessedRange, State, Transaction
from txnframework.model.ids import METADATA_FAMILY
from txnframework.testing._suites._pending_ack._case import (
    PendingAckRules,
    add,
    at,
    deleted,
    is_free,
    part,
    settle,
    single,
    upto,
)
from txnframework.testing._suites._processes import abort, begin, commit, held_up, kill


class SettleRules(PendingAckRules):
    """An outcome takes effect once, whichever process settles it."""

    async def test_in_any_order(self) -> None:
        """Settling gives the same cursor once or repeatedly, in any process, before or after another transaction."""
        async with self.data.open() as world, self.data.open() as other:
            ended: list[Transaction] = []
            for entry in range(0, 12, 2):
                txn = await begin(world)
                await add(world, txn, *single(entry))
                await add(other, txn, *single(entry + 1), branch=6)
                if entry % 4:
                    ended.append(await abort(world, txn))
                else:
                    ended.append(await commit(other, txn))
            await settle(ended[0], other, world)
            for one in ended[::-1]:
                await settle(one, world, other)
            await asyncio.gather(*(settle(one, process) for one in ended for process in (world, other)))
            done = [entry for entry in range(12) if await deleted(world, at(entry)) == [True]]
            assert done == [0, 4, 8]
        async with self.data.open() as fresh:
            assert (await fresh.acks.recover()).open == {}
            assert await is_free(fresh, *single(1, 2, 3, 5))

    async def test_one_does_not_give_back_anothers(self) -> None:
        """
        Settling a committed or aborted transaction does not change the acknowledgments that another open transaction
        holds.
        """
        async with self.data.open() as world, self.data.open() as other:
            holder = await begin(world)
            await add(world, holder, *single(0), part(9, 1))
            for end in (commit, abort):
                txn = await begin(other)
                await add(other, txn, *single(1 if end is commit else 2), part(9, 2 if end is commit else 3))
                await settle(await end(other, txn), world, other)
                for process in (world, other):
                    assert not await is_free(process, *single(0))
                    assert not await is_free(process, part(9, 1))
            await settle(await commit(world, holder), other)
            assert await deleted(world, at(0), at(9, 1), at(2)) == [True, True, False]

    async def test_repeated_after_a_failure(self) -> None:
        """
        If any step of settling fails, repeating it makes the outcome take effect.

        If this fails, check that the cursor is written before the records are deleted.
        """
        async with self.data.open() as world, self.data.open() as other:
            step, failed = 0, True
            while failed:
                step += 1
                txn = await begin(world)
                await add(world, txn, *single(10 * step))
                ended = await commit(world, txn)
                world.connection.refuse(step)
                try:
                    await world.acks.settle(ended)
                except Unavailable:
                    world.connection.restore()
                    assert not await is_free(other, *single(10 * step)), f"refused at step {step}"
                    await world.acks.settle(ended)
                else:
                    failed = False
                world.connection.restore()
                assert await deleted(other, at(10 * step)) == [True]

    async def test_killed_while_settling(self) -> None:
        """
        After a kill at any step of settling, no acknowledgment is lost: the next opening of the subscription applies
        it.
        """
        async with self.data.open() as survivor:
            step, reached = 0, True
            while reached:
                step += 1
                txn = await begin(survivor)
                await add(survivor, txn, *single(10 * step), part(10 * step + 5, 1))
                ended = await commit(survivor, txn)
                async with (
                    self.data.open() as world,
                    held_up(world.connection, step, world.acks.settle(ended)) as (task, reached),
                ):
                    await kill(world, task)
                async with self.data.open() as fresh:
                    assert txn not in (await fresh.acks.recover()).open
                    assert await deleted(fresh, at(10 * step), at(10 * step + 5, 1)) == [True, True]

    async def test_lost_reply_while_settling(self) -> None:
        """A lost reply during settling loses no acknowledgment; repeating succeeds."""
        async with self.data.open() as world:
            for write in (1, 2, 3):
                txn = await begin(world)
                await add(world, txn, *single(10 * write))
                ended = await commit(world, txn)
                world.connection.lose(write)
                for _ in range(2):
                    try:
                        await world.acks.settle(ended)
                    except TxnFrameworkError:
                        world.connection.restore()
                world.connection.restore()
                assert await deleted(world, at(10 * write)) == [True]

    async def test_other_incarnation_is_dropped(self) -> None:
        """Acknowledgments made before a seek have no effect after it, and cause no conflicts."""
        async with self.data.open() as world, self.data.open() as other:
            early, late = await begin(world), await begin(world)
            await add(world, early, *single(5), upto(2))
            await add(world, late, *single(6))
            ended = await commit(world, early)
            await world.cursor.seek(at(-1))
            assert await is_free(other, *single(5, 6))
            await settle(ended, world, other)
            await settle(await commit(world, late), other)
            cursor = await world.cursor.load()
            assert (cursor.incarnation, cursor.mark_delete, tuple(cursor.deleted)) == (2, at(-1), ())

    async def test_processed_range(self) -> None:
        """
        The range that a batch consumed is applied to the cursor with the acknowledgment, if the commit counts its
        branch.
        """
        async with self.data.open() as world:
            for number, end in enumerate((abort, commit)):
                processed = ProcessedRange("query", number, at(-1), at(3), 1)
                txn = await begin(world)
                await add(world, txn, upto(3), processed=processed)
                await world.acks.settle(await end(world, txn))
                assert world.cursor.history == ([processed] if end is commit else [])

    async def test_closed(self) -> None:
        """After close, the store raises Closed and accepts nothing; close may be repeated."""
        async with self.data.open() as world:
            txn = await begin(world)
            await world.acks.close()
            await world.acks.close()
            with pytest.raises(Closed):
                await add(world, txn, *single(0))


class RecoverRules(PendingAckRules):
    """Opening a subscription reads pending acknowledgments and settles ended transactions."""

    async def test_nothing(self) -> None:
        """A new subscription has nothing pending."""
        async with self.data.open() as world:
            found = await world.acks.recover()
            assert (found.open, found.ended) == ({}, {})

    async def test_holds_of_open_transactions(self) -> None:
        """``recover`` returns what open transactions hold, by transaction, with branch and incarnation."""
        async with self.data.open() as world:
            first, second = await begin(world), await begin(world)
            await add(world, first, *single(0))
            await add(world, first, part(1, 0, 2), branch=5)
            await add(world, second, part(1, 1))
        async with self.data.open() as world:
            found = await world.acks.recover()
            assert found.ended == {}
            held = {
                txn: sorted((one.branch, one.ack.position, one.ack.batch_indexes, one.incarnation) for one in some)
                for txn, some in found.open.items()
            }
            assert held == {
                first: [(Branch(first), at(0), None, 1), (Branch(first, 5), at(1), frozenset({0, 2}), 1)],
                second: [(Branch(second), at(1), frozenset({1}), 1)],
            }
            assert {one.state for some in found.open.values() for one in some} == {State.OPEN}

    async def test_restart(self) -> None:
        """
        After a restart, pending messages still conflict, committed ones are acknowledged and aborted ones are free.

        This holds for all kinds of acknowledgments.
        """
        async with self.data.open() as world:
            pending, kept, dropped = await begin(world), await begin(world), await begin(world)
            for number, txn in enumerate((pending, kept, dropped)):
                await add(world, txn, *single(number), part(5, number))
            await commit(world, kept)
            await abort(world, dropped)
        async with self.data.open() as world:
            found = await world.acks.recover()
            assert set(found.open) == {pending}
            ended = {kept: State.COMMITTED, dropped: State.ABORTED}
            # In the log family, the end has already settled them.
            assert found.ended == (ended if world.coordinator.family == METADATA_FAMILY else {})
            assert await deleted(world, at(0), at(1), at(2)) == [False, True, False]
            assert (await world.cursor.load()).partial == {at(5): frozenset({1})}
            assert not await is_free(world, *single(0))
            assert not await is_free(world, part(5, 0))
            assert await is_free(world, *single(2), part(5, 2))
            assert (await world.acks.recover()).ended == {}
            await world.acks.settle(await commit(world, pending))
            assert await deleted(world, at(0), at(5, 0)) == [True, True]

    async def test_recovering_while_others_settle(self) -> None:
        """
        If others settle and forget between two steps of recovery, each message is held or in the cursor read
        afterwards.

        If this fails, check the order: operations, then headers, then the cursor last. An absent header proves nothing.
        """
        async with self.data.open() as world, self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                txn = await begin(other)
                await add(other, txn, *single(10 * step))
                async with held_up(world.connection, step, world.acks.recover()) as (task, reached):
                    await other.acks.settle(await commit(other, txn))
                    await self.forget_ended(other)
                    world.connection.restore()
                    found = await task
                assert txn in found.open or await deleted(world, at(10 * step)) == [True]
                assert await deleted(world, at(10 * step)) == [True]

    async def test_killed_while_recovering(self) -> None:
        """After a kill at any step of recovery, the next recovery finds the same."""
        async with self.data.open() as survivor:
            step, reached = 0, True
            while reached:
                step += 1
                kept, dropped = await begin(survivor), await begin(survivor)
                await add(survivor, kept, *single(10 * step))
                await add(survivor, dropped, *single(10 * step + 5))
                await commit(survivor, kept)
                await abort(survivor, dropped)
                async with (
                    self.data.open() as world,
                    held_up(world.connection, step, world.acks.recover()) as (task, reached),
                ):
                    await kill(world, task)
                async with self.data.open() as fresh:
                    await fresh.acks.recover()
                    assert await deleted(fresh, at(10 * step), at(10 * step + 5)) == [True, False]
                    assert await is_free(fresh, *single(10 * step + 5))

    async def test_timed_out_transaction_gives_back(self) -> None:
        """Messages that an abandoned transaction held are free after its timeout was noticed."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world, 1_000)
            await add(world, txn, *single(0))
            assert not await is_free(other, *single(0))
            await other.coordinator.expire(self.data.now_ms() + 60_000)
            assert await is_free(other, *single(0))
            with pytest.raises(TransactionConflict):
                await add(world, txn, *single(1))
