"""Rules of many calls in one branch: few records, separate conflicts, and no acknowledgment lost."""

from __future__ import annotations

import asyncio

from txnframework.model import TxnID
from txnframework.model.metadata import IndexRange, KeyRange
from txnframework.model.paths import operations_range
from txnframework.model.records import AckOperation, decode_operation
from txnframework.testing._suites._pending_ack._case import (
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
from txnframework.testing._suites._processes import abort, begin, commit, held_up, kill
from txnframework.testing.world import World

CALLS = 100
PAGE_RECORDS = 1_000


async def records(world: World, txn_id: TxnID) -> int:
    """Return the number of a transaction's acknowledgment records in the metadata store."""
    found = 0
    left: KeyRange | IndexRange | None = operations_range(txn_id)
    while isinstance(left, KeyRange):
        page = await world.store.scan(left, PAGE_RECORDS)
        found += sum(isinstance(decode_operation(record), AckOperation) for record in page.records)
        left = page.resume
    return found


class GrowRules(PendingAckRules):
    """Many calls of one branch."""

    async def test_records_do_not_grow_with_calls(self) -> None:
        """
        All acknowledgments of one kind in a branch share one record, and all take effect.

        This holds for successive calls and for concurrent ones.
        """
        async with self.data.open() as world:
            for base, together in ((0, False), (1_000, True)):
                txn = await begin(world)
                adding = [add(world, txn, *single(base + entry)) for entry in range(CALLS)]
                if together:
                    await asyncio.gather(*adding)
                else:
                    for one in adding:
                        await one
                assert await records(world, txn) <= 1
                await world.acks.settle(await commit(world, txn))
                assert all(await deleted(world, *(at(base + entry) for entry in range(CALLS))))

    async def test_branches_grow_apart(self) -> None:
        """Two branches that acknowledge in turns stay separate: only the counted branch takes effect."""
        async with self.data.open() as world:
            txn = await begin(world)
            for entry in range(6):
                await add(world, txn, *single(entry), branch=5 if entry % 2 else 0)
            await world.acks.settle(await commit(world, txn, 0))
            assert await deleted(world, *(at(entry) for entry in range(6))) == [True, False] * 3

    async def test_parts_of_entries_in_turns(self) -> None:
        """Parts of entries and cumulative acknowledgments add up over calls, and conflict as their sum."""
        async with self.data.open() as world:
            txn = await begin(world)
            await add(world, txn, upto(0))
            for index in range(3):
                await add(world, txn, part(5, index))
            await add(world, txn, upto(2))
            assert not await is_free(world, part(5, 0, 3))
            assert not await is_free(world, *single(1))
            assert await is_free(world, part(5, 3), *single(3))
            await world.acks.settle(await commit(world, txn))
            assert await deleted(world, at(2), at(3), *(at(5, index) for index in range(4))) == [
                True,
                False,
                True,
                True,
                True,
                False,
            ]

    async def test_each_its_own_conflict(self) -> None:
        """Of many concurrent calls of one branch, only those fail whose messages another transaction holds."""
        async with self.data.open() as world, self.data.open() as other:
            holder, txn = await begin(other), await begin(world)
            await add(world, txn, *single(100))
            await add(other, holder, *single(*range(0, 10, 3)))
            adding = (answered(add(world, txn, *single(entry, 20 + entry))) for entry in range(10))
            told = await asyncio.gather(*adding)
            assert told == [bool(entry % 3) for entry in range(10)]
            await other.acks.settle(await abort(other, holder))
            await world.acks.settle(await commit(world, txn))
            for offset in (0, 20):
                assert await deleted(world, *(at(offset + entry) for entry in range(10))) == told
            assert await deleted(world, at(100)) == [True]

    async def test_one_cancelled_of_many(self) -> None:
        """If one of several concurrent calls is cancelled, the others return, and their confirmed acks take effect."""
        async with self.data.open() as world:
            txn = await begin(world)
            held = world.connection.hold(1)
            adding = [asyncio.ensure_future(add(world, txn, *single(entry))) for entry in range(4)]
            await held.reached.wait()
            adding[1].cancel()
            await asyncio.wait({adding[1]})
            world.connection.restore()
            told = await asyncio.gather(*adding, return_exceptions=True)
            assert [one for one in told if one is not told[1]] == [None] * 3
            await add(world, txn, *single(9))
            await world.acks.settle(await commit(world, txn))
            assert await deleted(world, at(0), at(2), at(3), at(9)) == [True] * 4

    async def test_more_with_a_lost_reply(self) -> None:
        """A later call with a lost reply may be repeated, and the earlier confirmed calls still take effect."""
        async with self.data.open() as world:
            for write in range(1, 5):
                txn, base = await begin(world), 100 * write
                await add(world, txn, *single(base))
                world.connection.lose(write)
                told = await answered(add(world, txn, *single(base + 5)))
                world.connection.restore()
                assert told is not False
                await add(world, txn, *single(base + 5))
                await add(world, txn, *single(base + 10))
                await world.acks.settle(await commit(world, txn))
                assert await deleted(world, at(base), at(base + 5), at(base + 10)) == [True] * 3

    async def test_killed_while_adding_more(self) -> None:
        """After a kill at any step of a later call, the earlier confirmed calls take effect with the commit."""
        async with self.data.open() as survivor:
            step, reached = 0, True
            while reached:
                step += 1
                base = 100 * step
                txn = await begin(survivor)
                async with self.data.open() as world:
                    await add(world, txn, *single(base))
                    async with held_up(world.connection, step, add(world, txn, *single(base + 5))) as (task, reached):
                        await kill(world, task)
                await survivor.acks.settle(await commit(survivor, txn))
                await self.forget_ended(survivor)
                assert await deleted(survivor, at(base)) == [True]

    async def test_more_while_others_recover(self) -> None:
        """
        Acknowledgments added and committed between two steps of another process's recovery are not lost.

        If this fails, check that records are read after their transaction was seen as ended, and deleted at the version
        read.
        """
        async with self.data.open() as world, self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                base = 100 * step
                txn = await begin(world)
                await add(world, txn, *single(base))
                async with held_up(other.connection, step, other.acks.recover()) as (task, reached):
                    await add(world, txn, *single(base + 5))
                    ended = await commit(world, txn)
                    other.connection.restore()
                    await task
                await world.acks.settle(ended)
                await self.forget_ended(world)
                assert await deleted(world, at(base), at(base + 5)) == [True, True], f"lost at step {step}"

    async def test_refused_while_others_recover(self) -> None:
        """
        A refused call is not applied by another process that recovers while the call is being checked.

        If this fails, check that records are read after their transaction was seen as ended.
        """
        async with self.data.open() as world, self.data.open() as other:
            base, later, again = 0, 0, True
            while again:
                later, step, reached = later + 1, 0, True
                while reached:
                    step, base = step + 1, base + 100
                    holder, txn = await begin(other), await begin(world)
                    await add(world, holder, *single(base + 5))
                    await add(world, txn, *single(base))
                    refused = answered(add(world, txn, *single(base + 5)))
                    async with (
                        held_up(world.connection, step, refused) as (adding, reached),
                        held_up(other.connection, later, other.acks.recover()) as (recovering, again),
                    ):
                        world.connection.restore()
                        assert await adding is False
                        ended = await commit(world, txn)
                        other.connection.restore()
                        await recovering
                    await world.acks.settle(ended)
                    assert await deleted(world, at(base), at(base + 5)) == [True, False]
                    await world.acks.settle(await abort(world, holder))

    async def test_refused_is_not_recorded(self) -> None:
        """
        A refused call has no effect, even if its transaction is committed and settled between its steps.

        A call that may have an effect raises OutcomeUnknown instead.
        """
        async with self.data.open() as world, self.data.open() as other:
            for earlier in (False, True):
                step, reached = 0, True
                while reached:
                    step += 1
                    base = 100 * step + 10_000 * earlier
                    txn = await begin(other)
                    if earlier:
                        await add(world, txn, *single(base))
                    adding = answered(add(world, txn, *single(base + 5)))
                    async with held_up(world.connection, step, adding) as (task, reached):
                        await other.acks.settle(await commit(other, txn))
                        world.connection.restore()
                        told = await task
                    done = await deleted(other, at(base + 5)) == [True]
                    assert told is None or told is done, f"told {told} at step {step}, and it is {done}"
