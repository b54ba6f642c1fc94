"""Rules of IApplicationCoordinator: fenced runs, one transaction per batch, and outcomes that are kept."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import Fenced, OutcomeUnknown, TransactionConflict, Unavailable
from txnframework.interfaces import IApplicationCoordinator
from txnframework.model import (
    BatchID,
    CommittedBatch,
    Position,
    SourceRange,
    State,
    Transaction,
)
from txnframework.testing._suites._coordinator._case import CoordinatorRules, outcome, state_in
from txnframework.testing._suites._processes import TIMEOUT_MS, abort, commit, held_up, kill
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World

APPLICATION = "suite/ä:1"
RANGES = (SourceRange("topic://public/default/in", "group", {"s": Position(0, -1)}, {"s": Position(0, 9)}),)


def batch_of(run: str, version: int, query: str = "query") -> BatchID:
    """Return the id of one batch of a run."""
    return BatchID(APPLICATION, query, run, version)


def applications(world: World) -> IApplicationCoordinator:
    """Return the coordinator as an IApplicationCoordinator, which it must declare."""
    assert IApplicationCoordinator.providedBy(world.coordinator)
    return world.coordinator


async def begin_batch(world: World, batch: BatchID) -> Transaction:
    """Begin a batch, or return its open transaction."""
    return await applications(world).begin_batch(batch, TIMEOUT_MS)


async def committed_in(world: World) -> list[tuple[str, int, tuple[SourceRange, ...]]]:
    """Return query, version and source ranges of each committed batch."""
    found = await applications(world).application(APPLICATION)
    assert found is not None
    return [(one.query, one.version, one.ranges) for one in found.committed]


class ApplicationRules(CoordinatorRules):
    """A past run is fenced, and a batch has one open transaction."""

    @requires(IApplicationCoordinator)
    async def test_keeps_the_application_interface(self) -> None:
        """A coordinator that declares IApplicationCoordinator has all its methods."""
        from txnframework.plugin import verify_provider

        async with self.data.open() as world:
            verify_provider(IApplicationCoordinator, world.coordinator)

    @requires(IApplicationCoordinator)
    async def test_claim(self) -> None:
        """An application is unknown until a run claims it; claiming it again in the same run changes nothing."""
        async with self.data.open() as world, self.data.open() as other:
            assert await applications(world).application(APPLICATION) is None
            claimed = await applications(world).claim(APPLICATION, "run-1")
            assert (claimed.application, claimed.run, claimed.txn_id) == (APPLICATION, "run-1", None)
            assert claimed.committed == ()
            for process in (world, other):
                assert await applications(process).claim(APPLICATION, "run-1") == claimed
                assert await applications(process).application(APPLICATION) == claimed

    @requires(IApplicationCoordinator)
    async def test_past_runs_are_fenced(self) -> None:
        """A run that was followed by another one is Fenced permanently, in all processes and after a restart."""
        async with self.data.open() as world, self.data.open() as other:
            for run in ("run-1", "run-2", "run-3"):
                await applications(world).claim(APPLICATION, run)
            for process in (world, other):
                await self.fenced(process, "run-1")
                await self.fenced(process, "run-2")
        async with self.data.open() as fresh:
            await self.fenced(fresh, "run-2")
            assert (await applications(fresh).claim(APPLICATION, "run-3")).run == "run-3"

    async def fenced(self, world: World, run: str) -> None:
        """Check that ``claim`` and ``begin_batch`` of a past run raise Fenced and change nothing."""
        before = await applications(world).application(APPLICATION)
        with pytest.raises(Fenced):
            await applications(world).claim(APPLICATION, run)
        with pytest.raises(Fenced):
            await begin_batch(world, batch_of(run, 99))
        assert await applications(world).application(APPLICATION) == before

    @requires(IApplicationCoordinator)
    async def test_a_run_follows_one_run(self) -> None:
        """Of two runs that follow the same run, or none, the first to begin succeeds and the other is Fenced."""
        async with self.data.open() as world, self.data.open() as other:

            async def begin(process: World, run: str, follows: str | None) -> Transaction:
                return await begin_batch(process, BatchID(APPLICATION, "query", run, 1, follows))

            for late, run, follows in (("late-1", "run-1", ""), ("late-2", "run-2", "run-1")):
                began = await begin(world, run, follows)
                before = await applications(world).application(APPLICATION)
                for process in (other, world):
                    with pytest.raises(Fenced):
                        await begin(process, late, follows)
                assert await applications(other).application(APPLICATION) == before
                assert await state_in(other, began.txn_id) is State.OPEN
                # Other tasks of this run get its transaction, whether or not they name the run that it follows.
                assert await begin(other, run, follows) == began
                assert await begin(other, run, None) == began
            assert (await begin(other, "run-3", None)).txn_id != began.txn_id
            await self.fenced(world, "run-2")

    @requires(IApplicationCoordinator)
    async def test_one_transaction_a_batch(self) -> None:
        """
        All processes of a run that begin a batch get its one open transaction, also when they begin at the same time.
        """
        async with self.data.open() as world, self.data.open() as other:
            for version in range(4):
                batch = batch_of("run-1", version)
                asked = (begin_batch(process, batch) for _ in range(3) for process in (world, other))
                began = await asyncio.gather(*asked)
                assert len({one.txn_id for one in began}) == 1
                assert {one.state for one in began} == {State.OPEN}
                found = await applications(other).application(APPLICATION)
                assert found is not None
                assert (found.query, found.version, found.txn_id) == ("query", version, began[0].txn_id)

    @requires(IApplicationCoordinator)
    async def test_racing_first_calls(self) -> None:
        """Two processes that begin one batch get the same transaction, at whichever step of one the other begins."""
        async with self.data.open() as world, self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                batch = batch_of("run-1", step)
                async with held_up(world.connection, step, begin_batch(world, batch)) as (task, reached):
                    second = await begin_batch(other, batch)
                    world.connection.restore()
                    first = await task
                assert first.txn_id == second.txn_id
                assert await state_in(other, first.txn_id) is State.OPEN

    @requires(IApplicationCoordinator)
    async def test_new_run_aborts_the_open_transaction(self) -> None:
        """A new run never continues the old run's transaction: that one is aborted, and a new one begins."""
        async with self.data.open() as world, self.data.open() as other:
            old = await begin_batch(world, batch_of("run-1", 7))
            await applications(other).claim(APPLICATION, "run-2")
            new = await begin_batch(other, batch_of("run-2", 7))
            assert new.txn_id != old.txn_id
            assert await outcome(world, old.txn_id) is State.ABORTED
            assert await state_in(world, new.txn_id) is State.OPEN
            await self.fenced(world, "run-1")

    @requires(IApplicationCoordinator)
    async def test_fencing_at_any_step(self) -> None:
        """A run that is fenced at any step of ``begin_batch`` leaves no open transaction except the recorded one."""
        async with self.data.open() as world, self.data.open() as other:
            step, reached = 0, True
            while reached:
                step += 1
                old, new = f"run-{step}-a", f"run-{step}-b"
                await applications(world).claim(APPLICATION, old)
                async with held_up(world.connection, step, begin_batch(world, batch_of(old, 1))) as (task, reached):
                    await applications(other).claim(APPLICATION, new)
                    second = await begin_batch(other, batch_of(new, 1))
                    world.connection.restore()
                    try:
                        first = await task
                    except Fenced:
                        pass
                    else:
                        assert await outcome(other, first.txn_id) is State.ABORTED
                assert await state_in(other, second.txn_id) is State.OPEN
                found = await applications(other).application(APPLICATION)
                assert found is not None
                assert (found.run, found.txn_id) == (new, second.txn_id)

    @requires(IApplicationCoordinator)
    async def test_next_batch_aborts_the_open_one(self) -> None:
        """Beginning the next batch aborts the transaction of an earlier batch that is still open."""
        async with self.data.open() as world:
            earlier = await begin_batch(world, batch_of("run-1", 1))
            later = await begin_batch(world, batch_of("run-1", 2))
            assert await outcome(world, earlier.txn_id) is State.ABORTED
            assert await state_in(world, later.txn_id) is State.OPEN

    @requires(IApplicationCoordinator)
    async def test_batch_that_ended_begins_another(self) -> None:
        """
        Beginning a batch whose transaction was committed or aborted begins a new one, so writers can always stage.
        """
        async with self.data.open() as world, self.data.open() as other:
            for version, end in ((1, commit), (2, abort)):
                first = await begin_batch(world, batch_of("run-1", version))
                await end(world, first.txn_id)
                second = await begin_batch(other, batch_of("run-1", version))
                assert second.txn_id != first.txn_id
                assert second.state is State.OPEN
                await abort(world, second.txn_id)

    @requires(IApplicationCoordinator)
    async def test_outcome_is_carried(self) -> None:
        """The next batch, run and process know the ranges of a committed batch, before and after settling."""
        expected: list[tuple[str, int, tuple[SourceRange, ...]]] = []
        async with self.data.open() as world, self.data.open() as other:
            for version in range(4):
                run = f"run-{version // 2}"
                batch = batch_of(run, version)
                began = await begin_batch(world, batch)
                for _ in range(2):
                    await applications(world).finish_batch(batch, began.txn_id, RANGES)
                assert await committed_in(other) == expected
                await commit(world, began.txn_id)
                expected.append(("query", version, RANGES))
                assert await committed_in(other) == expected
                if version % 2:
                    await other.coordinator.settle(began.txn_id)
                    assert await committed_in(world) == expected
            await self.forget_ended(other)
            assert await committed_in(world) == expected
        async with self.data.open() as fresh:
            assert await committed_in(fresh) == expected
            assert isinstance((await applications(fresh).claim(APPLICATION, "run-9")).committed[0], CommittedBatch)

    @requires(IApplicationCoordinator)
    async def test_aborted_batch_is_not_carried(self) -> None:
        """The ranges of an aborted batch are never reported as committed."""
        async with self.data.open() as world:
            batch = batch_of("run-1", 1)
            began = await begin_batch(world, batch)
            await applications(world).finish_batch(batch, began.txn_id, RANGES)
            await abort(world, began.txn_id)
            assert await committed_in(world) == []
            await begin_batch(world, batch_of("run-1", 2))
            await self.forget_ended(world)
            assert await committed_in(world) == []

    @requires(IApplicationCoordinator)
    async def test_finishing_an_ended_transaction(self) -> None:
        """``finish_batch`` in a transaction that has ended raises TransactionConflict."""
        async with self.data.open() as world:
            for version, end in ((1, commit), (2, abort)):
                batch = batch_of("run-1", version)
                began = await begin_batch(world, batch)
                await end(world, began.txn_id)
                with pytest.raises(TransactionConflict):
                    await applications(world).finish_batch(batch, began.txn_id, RANGES)

    @requires(IApplicationCoordinator)
    async def test_application_lost_replies(self) -> None:
        """A call whose reply is lost at any write succeeds or raises OutcomeUnknown, and succeeds when repeated."""
        async with self.data.open() as world, self.data.open() as other:
            for number in range(1, 6):
                batch = batch_of(f"run-{number}", number)
                world.connection.lose(number)
                try:
                    await applications(world).claim(APPLICATION, batch.run)
                    began = await begin_batch(world, batch)
                    await applications(world).finish_batch(batch, began.txn_id, RANGES)
                except OutcomeUnknown:
                    pass
                world.connection.restore()
                assert (await applications(world).claim(APPLICATION, batch.run)).run == batch.run
                began = await begin_batch(world, batch)
                assert (await begin_batch(other, batch)).txn_id == began.txn_id
                await applications(world).finish_batch(batch, began.txn_id, RANGES)
                await commit(world, began.txn_id)
                assert (await committed_in(other))[-1] == ("query", number, RANGES)

    @requires(IApplicationCoordinator)
    async def test_killed_at_any_step(self) -> None:
        """After a kill at any step before the commit, the next run commits the batch exactly once."""
        step, reached = 0, True
        async with self.data.open() as survivor:
            while reached:
                step += 1
                batch = batch_of(f"run-{step}-a", step)
                async with (
                    self.data.open() as world,
                    held_up(world.connection, step, whole_batch(world, batch)) as (task, reached),
                ):
                    await kill(world, task)
                again = batch_of(f"run-{step}-b", step)
                known = (await applications(survivor).claim(APPLICATION, again.run)).committed
                if not any(one.version == step for one in known):
                    await whole_batch(survivor, again)
                versions = [version for _, version, _ in await committed_in(survivor)]
                assert versions.count(step) == 1

    @requires(IApplicationCoordinator)
    async def test_application_refused_steps(self) -> None:
        """
        If the store is unavailable at any step, a call raises Unavailable or OutcomeUnknown, and succeeds when
        repeated.
        """
        async with self.data.open() as world:
            for number in range(1, 8):
                batch = batch_of("run-1", number)
                world.connection.refuse(number)
                try:
                    await whole_batch(world, batch)
                except (Unavailable, OutcomeUnknown):
                    world.connection.restore()
                    await whole_batch(world, batch)
                world.connection.restore()
                assert (await committed_in(world))[-1] == ("query", number, RANGES)


async def whole_batch(world: World, batch: BatchID) -> None:
    """Claim, begin, finish and commit one batch."""
    await applications(world).claim(batch.application, batch.run)
    began = await begin_batch(world, batch)
    await applications(world).finish_batch(batch, began.txn_id, RANGES)
    await commit(world, began.txn_id)
