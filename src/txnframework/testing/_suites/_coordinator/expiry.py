"""Rules of settle, expire and collect: no transaction is aborted early or forgotten before its effect is durable."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import InvalidTransactionState, TransactionNotFound
from txnframework.model import Branch, Participant, Position, State, TxnID, Visibility
from txnframework.testing._suites._coordinator._case import (
    METADATA_FAMILY,
    CoordinatorRules,
    acknowledge,
    committed_entry,
    is_acknowledged,
    open_for,
    outcome,
    state_in,
    write,
)
from txnframework.testing._suites._coordinator.ends import told
from txnframework.testing._suites._processes import TIMEOUT_MS, YEAR_MS, abort, begin, commit, held_up, kill
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World, WorldHarness

SWEEPS_MAX = 50
"""More sweeps than the tests need: each is bounded, and together they must finish all transactions."""


class ExpireRules(CoordinatorRules):
    """Transactions are aborted after their deadline."""

    data: WorldHarness

    async def expire_all(self, world: World, now_ms: int) -> None:
        """Sweep until nothing more is due."""
        for _ in range(SWEEPS_MAX):
            if not (await world.coordinator.expire(now_ms)).left:
                return
        raise AssertionError("sweeping does not come to an end")

    async def test_aborted_past_the_deadline(self) -> None:
        """A sweep in any process aborts the transactions past their deadline; the others stay open."""
        async with self.data.open() as world, self.data.open() as other:
            for process in (world, other):
                short, long = await begin(world, 1_000), await begin(world, TIMEOUT_MS)
                swept = await process.coordinator.expire(self.data.now_ms() + TIMEOUT_MS // 2)
                assert swept.done == 1
                assert await outcome(other, short) is State.ABORTED
                assert await state_in(world, long) is State.OPEN
                await abort(world, long)

    async def test_clock_skew_is_spared(self) -> None:
        """
        A sweep allows for clocks that differ by ``max_clock_skew_ms``: it aborts only that long after the deadline.
        """
        skew_ms = self.data.transactions.max_clock_skew_ms
        async with self.data.open() as world:
            began = await open_for(world, TIMEOUT_MS)
            due_ms = began.deadline_ms + skew_ms
            for early_ms in (self.data.now_ms(), began.deadline_ms, due_ms - 1):
                swept = await world.coordinator.expire(early_ms)
                assert (swept.done, swept.left) == (0, 0)
                assert swept.next_ms is not None
                assert swept.next_ms <= due_ms + 1
                assert await state_in(world, began.txn_id) is State.OPEN
            await self.expire_all(world, due_ms + 1)
            assert await outcome(world, began.txn_id) is State.ABORTED

    async def test_after_a_restart(self) -> None:
        """Deadlines remain after a restart of the process that began the transactions."""
        async with self.data.open() as world:
            txn = await begin(world)
            position = await write(world, txn)
        async with self.data.open() as world:
            await self.expire_all(world, self.data.now_ms() + YEAR_MS)
            assert await outcome(world, txn) is State.ABORTED
            await world.coordinator.settle(txn)
            assert await world.buffer.max_read_position() >= position

    async def test_many_at_once(self) -> None:
        """Any number of overdue transactions is aborted, by a bounded number per sweep, also when sweeps race."""
        async with self.data.open() as world, self.data.open() as other:
            txns = [await begin(world, 1_000 + number % 7) for number in range(250)]
            late_ms = self.data.now_ms() + TIMEOUT_MS
            first = await world.coordinator.expire(late_ms)
            assert first.done <= self.data.transactions.sweep_transactions_max < len(txns)
            assert first.left
            await asyncio.gather(self.expire_all(world, late_ms), self.expire_all(other, late_ms))
            for txn in txns:
                assert await outcome(world, txn) is State.ABORTED

    async def test_races_with_commit(self) -> None:
        """A commit that races with the deadline has one outcome, at whichever step they meet."""
        async with self.data.open() as world, self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                txn = await begin(world)
                async with held_up(world.connection, step, commit(world, txn)) as (task, reached):
                    await self.expire_all(other, self.data.now_ms() + YEAR_MS)
                    world.connection.restore()
                    found = await told(task)
                final = await outcome(other, txn)
                assert (found if isinstance(found, State) else found.state) is final
                assert reached is False or final is State.ABORTED or step > 1

    async def test_whoever_owns_it(self) -> None:
        """Overdue transactions of all principals are aborted."""
        async with self.data.open() as world:
            began = await open_for(world, 1_000, "ada")
            await self.expire_all(world, self.data.now_ms() + TIMEOUT_MS)
            assert await outcome(world, began.txn_id) is State.ABORTED


class CollectRules(CoordinatorRules):
    """Ended transactions are settled first, and forgotten after the retention."""

    data: WorldHarness

    async def collect_all(self, world: World, now_ms: int) -> None:
        """Sweep until a sweep does nothing more."""
        for _ in range(SWEEPS_MAX):
            if not (await world.coordinator.collect(now_ms)).done:
                return
        raise AssertionError("sweeping does not come to an end")

    async def test_outcome_is_kept(self) -> None:
        """An outcome can be read for ``retention_ms``, and is forgotten some time later."""
        async with self.data.open() as world, self.data.open() as other:
            kept, dropped = await begin(world), await begin(world)
            await commit(world, kept)
            await abort(world, dropped)
            await self.collect_all(other, self.data.now_ms() + self.data.transactions.retention_ms)
            assert await outcome(world, kept) is State.COMMITTED
            assert await outcome(world, dropped) is State.ABORTED
            await self.collect_all(other, self.data.now_ms() + YEAR_MS)
            for txn in (kept, dropped):
                with pytest.raises(TransactionNotFound):
                    await world.coordinator.describe(txn)
                with pytest.raises(TransactionNotFound):
                    await commit(world, txn)

    async def test_open_ones_stay(self) -> None:
        """Open transactions are never forgotten, whatever their age."""
        async with self.data.open() as world:
            txn = await begin(world)
            await write(world, txn)
            await self.collect_all(world, self.data.now_ms() + YEAR_MS)
            assert await state_in(world, txn) is State.OPEN
            assert (await commit(world, txn)).state is State.COMMITTED

    async def test_sweeps_that_meet(self) -> None:
        """Concurrent sweeps of one process and of others all end, and all ended transactions are forgotten."""
        async with self.data.open() as world, self.data.open() as other:
            txns = [await begin(world) for _ in range(5)]
            for txn in txns:
                await commit(world, txn)
            late_ms = self.data.now_ms() + YEAR_MS
            for _ in range(3):
                await asyncio.gather(*(one.coordinator.collect(late_ms) for one in (world, world, other)))
            for txn in txns:
                with pytest.raises(TransactionNotFound):
                    await world.coordinator.describe(txn)

    async def test_settles_what_others_left(self) -> None:
        """Unsettled transactions are settled before they are forgotten: their acknowledgments are in the cursor."""
        async with self.data.open() as world:
            position = await committed_entry(world)
            txn = await begin(world)
            inside = await write(world, txn)
            await acknowledge(world, txn, position)
            await commit(world, txn)
        async with self.data.open() as world:
            await self.collect_all(world, self.data.now_ms() + YEAR_MS)
            assert await is_acknowledged(world, position)
            assert await world.buffer.resolve(Branch(txn)) is Visibility.COMMITTED
            assert await world.buffer.max_read_position() >= inside

    @requires(METADATA_FAMILY)
    async def test_out_of_reach_is_kept(self) -> None:
        """
        A transaction is not forgotten while a participant is out of reach; ``left`` reports what remains.

        A commit may need no step of a segment, so there only a subscription is out of reach.

        If this fails, check that a header is deleted only after all its operations: an unknown id means committed.
        """
        async with self.data.open() as world:
            subscription = world.acks.subscription
            for end, name in ((commit, subscription), (abort, subscription), (abort, "")):
                position = await committed_entry(world)
                txn = await begin(world)
                await write(world, txn)
                await acknowledge(world, txn, position)
                ended = await end(world, txn)
                world.participants.out_of_reach = {Participant(world.buffer.segment, name)}
                assert (await world.coordinator.settle(txn)).left
                swept = await world.coordinator.collect(self.data.now_ms() + YEAR_MS)
                assert swept.left
                assert (await world.coordinator.describe(txn)).state is ended.state
                world.participants.out_of_reach = set()
                await self.collect_all(world, self.data.now_ms() + YEAR_MS)
                with pytest.raises(TransactionNotFound):
                    await world.coordinator.describe(txn)
                assert await is_acknowledged(world, position) is (end is commit)
                wanted = Visibility.COMMITTED if end is commit else Visibility.ABORTED
                assert await world.buffer.resolve(Branch(txn)) is wanted

    @requires(METADATA_FAMILY)
    async def test_one_out_of_reach_hides_no_other(self) -> None:
        """A transaction that cannot be settled does not keep sweeps from finishing others."""
        async with self.data.open() as world:
            stuck = await begin(world)
            await acknowledge(world, stuck, await committed_entry(world))
            await commit(world, stuck)
            world.participants.out_of_reach = {Participant(world.buffer.segment, world.acks.subscription)}
            txns = [await begin(world) for _ in range(2 * self.data.transactions.sweep_transactions_max)]
            for txn in txns:
                await commit(world, txn)
            for _ in range(SWEEPS_MAX):
                await world.coordinator.collect(self.data.now_ms() + YEAR_MS)
            for txn in txns:
                with pytest.raises(TransactionNotFound):
                    await world.coordinator.describe(txn)
            assert await outcome(world, stuck) is State.COMMITTED

    async def test_killed_while_collecting(self) -> None:
        """After a kill at any step of a sweep, no outcome is lost: another process finishes the work."""
        async with self.data.open() as survivor:
            for end in (commit, abort):
                step, reached = 0, True
                while reached:
                    step += 1
                    position = await committed_entry(survivor)
                    txn = await begin(survivor)
                    await write(survivor, txn)
                    await acknowledge(survivor, txn, position)
                    await end(survivor, txn)
                    async with self.data.open() as world:
                        sweep = self.collect_all(world, self.data.now_ms() + YEAR_MS)
                        async with held_up(world.connection, step, sweep) as (task, reached):
                            await kill(world, task)
                    await self.finished_as(survivor, txn, position, end is commit)

    async def finished_as(self, world: World, txn: TxnID, position: Position, committed: bool) -> None:
        """Sweep what another process left, and check the transaction's effect."""
        await self.collect_all(world, self.data.now_ms() + YEAR_MS)
        assert await is_acknowledged(world, position) is committed
        wanted = Visibility.COMMITTED if committed else Visibility.ABORTED
        assert await world.buffer.resolve(Branch(txn)) is wanted
        with pytest.raises(TransactionNotFound):
            await world.coordinator.describe(txn)

    async def test_settle(self) -> None:
        """Settle makes an outcome take effect at all participants immediately, and may be repeated by any process."""
        async with self.data.open() as world, self.data.open() as other:
            position = await committed_entry(world)
            kept, dropped = await begin(world), await begin(world)
            await write(world, kept)
            await acknowledge(world, kept, position)
            await write(world, dropped)
            await commit(world, kept)
            await abort(world, dropped)
            for process in (world, other, world):
                for txn in (kept, dropped):
                    assert (await process.coordinator.settle(txn)).left == 0
                assert await is_acknowledged(process, position)
            assert await other.buffer.resolve(Branch(kept)) is Visibility.COMMITTED
            assert await other.buffer.resolve(Branch(dropped)) is Visibility.ABORTED

    async def test_open_ones_are_not_settled(self) -> None:
        """Settling an open transaction raises InvalidTransactionState and changes nothing."""
        async with self.data.open() as world:
            txn = await begin(world)
            await acknowledge(world, txn, await committed_entry(world))
            with pytest.raises(InvalidTransactionState):
                await world.coordinator.settle(txn)
            assert await state_in(world, txn) is State.OPEN
