"""Rules of events between two steps of an add: ends, kills, other processes and lost replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from txnframework.errors import Closed, OutcomeUnknown, TransactionConflict, Unavailable
from txnframework.model import Ack, AckRequest, Branch, State, Transaction
from txnframework.testing._suites._pending_ack._case import (
    PendingAckRules,
    add,
    at,
    deleted,
    is_free,
    single,
)
from txnframework.testing._suites._processes import abort, begin, commit, held_up, kill
from txnframework.testing.connection import HeldStep
from txnframework.testing.world import World


async def answered(adding: Awaitable[None]) -> bool | None:
    """Return whether an add succeeded; None if the outcome is unknown."""
    try:
        await adding
    except TransactionConflict:
        return False
    except OutcomeUnknown:
        return None
    return True


async def came_to(held: HeldStep, task: asyncio.Task[bool | None]) -> bool:
    """Return whether a task reaches a held step before it ends."""
    reached = asyncio.ensure_future(held.reached.wait())
    await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    return held.reached.is_set()


class AddRaceRules(PendingAckRules):
    """An add puts its record first and checks afterwards: its answer is true whatever happens between two steps."""

    async def test_two_processes(self) -> None:
        """Of two processes that acknowledge one message, at most one succeeds, at whichever step they meet."""
        async with self.data.open() as world, self.data.open() as other:
            for base, cumulative in ((0, False), (1_000, True)):
                step, reached = 0, True
                while reached:
                    step += 1
                    acks = (Ack(at(base + 10 * step), cumulative=cumulative),)
                    first, second = await begin(world), await begin(other)
                    async with held_up(world.connection, step, answered(add(world, first, *acks))) as (task, reached):
                        other_won = await answered(add(other, second, *acks))
                        world.connection.restore()
                        won = await task
                    assert not (won and other_won), f"both succeeded at step {step}"
                    assert reached or won
                    for txn in (first, second):
                        await world.acks.settle(await commit(other, txn))
                    assert await deleted(world, at(base + 10 * step)) == [bool(won or other_won)]

    async def test_holder_settles_meanwhile(self) -> None:
        """
        A message cannot be acknowledged twice, even if its holder commits, settles and is forgotten during an add.

        If this fails, check the order: operations of others, then their headers, then the cursor last.
        """
        async with self.data.open() as world, self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                holder, late = await begin(other), await begin(world)
                await add(other, holder, *single(10 * step))
                async with held_up(world.connection, step, answered(add(world, late, *single(10 * step)))) as (
                    task,
                    reached,
                ):
                    await other.acks.settle(await commit(other, holder))
                    await self.forget_ended(other)
                    world.connection.restore()
                    assert not await task, f"given twice at step {step}"
                await world.acks.settle(await abort(world, late))

    async def test_transaction_ends_meanwhile(self) -> None:
        """
        An add that succeeded takes effect with its commit, even if the commit came between two of its steps.

        In a branch that does not count, or in an aborted transaction, it leaves nothing, whatever it answered.
        """
        async with self.data.open() as world, self.data.open() as other:
            for end, branch, base in ((abort, 0, 0), (commit, 0, 1_000), (commit, 5, 2_000)):
                step, reached = 0, True
                while reached:
                    step += 1
                    entry = base + 10 * step
                    txn = await begin(other)
                    adding = answered(add(world, txn, *single(entry), branch=branch))
                    async with held_up(world.connection, step, adding) as (task, reached):
                        ended = await end(other, txn)
                        await other.acks.settle(ended)
                        world.connection.restore()
                        told = await task
                    await other.acks.settle(ended)
                    await self.forget_ended(other)
                    done = await deleted(other, at(entry)) == [True]
                    if ended.counts(branch):
                        assert done or not told, f"succeeded at step {step} and has no effect"
                    else:
                        assert not done
                    assert await is_free(other, *single(entry)) is not done

    async def test_killed_while_adding(self) -> None:
        """After a kill at any step of an add, no transaction holds the message once this one has ended."""
        async with self.data.open() as survivor:
            for end, base in ((abort, 0), (commit, 1_000)):
                step, reached = 0, True
                while reached:
                    step += 1
                    entry = base + 10 * step
                    txn = await begin(survivor)
                    async with (
                        self.data.open() as world,
                        held_up(world.connection, step, add(world, txn, *single(entry))) as (task, reached),
                    ):
                        await kill(world, task)
                    ended = await end(survivor, txn)
                    await survivor.acks.settle(ended)
                    if end is abort:
                        assert await deleted(survivor, at(entry)) == [False]
                        assert await is_free(survivor, *single(entry))
                    await self.forget_ended(survivor)
                    done = await deleted(survivor, at(entry)) == [True]
                    assert await is_free(survivor, *single(entry)) is not done

    async def test_killed_after_a_late_put(self) -> None:
        """
        A record that is put after its transaction has ended has no effect, even if its process is killed before its
        check.

        If this fails, check that a record is put in one batch with a check of the header.
        """
        async with self.data.open() as survivor:
            step, reached = 0, True
            while reached:
                step, later, both = step + 1, 0, True
                while both:
                    later += 1
                    entry = 1_000 * step + 10 * later
                    txn = await begin(survivor)
                    async with self.data.open() as world:
                        adding = answered(add(world, txn, *single(entry)))
                        async with held_up(world.connection, step, adding) as (task, reached):
                            both = reached
                            if reached:
                                was_put = world.connection.writes_sent > 0
                                ended = await commit(survivor, txn)
                                again = world.connection.hold(later)
                                world.connection.go_on()
                                both = await came_to(again, task)
                                await kill(world, task)
                    if reached:
                        await survivor.acks.settle(ended)
                        await self.forget_ended(survivor)
                        done = await deleted(survivor, at(entry)) == [True]
                        assert not done or was_put, f"put after the end, at step {step}"

    async def test_lost_reply_while_adding(self) -> None:
        """An add whose reply was lost is recorded or raises OutcomeUnknown; repeating it succeeds."""
        async with self.data.open() as world:
            for write in range(1, 5):
                txn = await begin(world)
                request = AckRequest(Branch(txn), single(10 * write), 1)
                world.connection.lose(write)
                told = await answered(world.acks.add(request))
                world.connection.restore()
                assert told is not False
                await world.acks.add(request)
                assert not await is_free(world, *single(10 * write))
                await world.acks.settle(await commit(world, txn))
                assert await deleted(world, at(10 * write)) == [True]

    async def test_refused_step_fails_the_add(self) -> None:
        """
        If the store fails at any step, the add fails, with Unavailable only if nothing is recorded; repeating succeeds.
        """
        async with self.data.open() as world, self.data.open() as other:
            step, failed = 0, True
            while failed:
                step += 1
                entry = 10 * step
                txn = await begin(world)
                world.connection.refuse(step)
                try:
                    await add(world, txn, *single(entry))
                    failed = False
                except Unavailable:
                    world.connection.restore()
                    assert await is_free(other, *single(entry)), f"recorded at step {step}"
                except OutcomeUnknown:
                    pass
                world.connection.restore()
                await add(world, txn, *single(entry))
                await world.acks.settle(await commit(world, txn))
                assert await deleted(world, at(entry)) == [True]

    async def test_cut_off_while_adding(self) -> None:
        """An add that is disconnected after its record was put raises OutcomeUnknown, never another error."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            world.connection.cut_at(1)
            told: bool | None = False
            with suppress(Closed):
                told = await answered(add(world, txn, *single(0)))
            assert told is None
            world.connection.restore()
            await other.acks.settle(await abort(other, txn))
            assert await is_free(other, *single(0))

    async def test_seek_meanwhile(self) -> None:
        """An add that meets a seek at any of its steps has no effect on the new incarnation."""
        async with self.data.open() as world, self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                incarnation = (await other.cursor.load()).incarnation
                txn = await begin(world)
                adding = answered(add(world, txn, *single(7), incarnation=incarnation))
                async with held_up(world.connection, step, adding) as (task, reached):
                    await other.cursor.seek(at(-1))
                    world.connection.restore()
                    await task
                await self.without_effect(other, await commit(other, txn))

    async def without_effect(self, world: World, ended: Transaction) -> None:
        """Settle a commit, and check that it acknowledged nothing."""
        assert ended.state is State.COMMITTED
        await world.acks.settle(ended)
        assert await deleted(world, at(7)) == [False]
