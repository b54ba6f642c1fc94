"""Rules of list_open, outstanding and watch_ended."""

from __future__ import annotations

import pytest

from txnframework.errors import Closed
from txnframework.model import Limit, OpenQuery, Participant, State, TxnID
from txnframework.testing._suites._coordinator._case import (
    METADATA_FAMILY,
    CoordinatorRules,
    acknowledge,
    committed_entry,
    open_for,
    write,
)
from txnframework.testing._suites._processes import TIMEOUT_MS, abort, begin, commit
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World, WorldHarness

_BEGUN = 5
_LOOK_STEPS_MAX = 4


class ListRules(CoordinatorRules):
    """Who wants to know what is open asks, in pages."""

    async def listed(self, world: World, query: OpenQuery) -> list[TxnID]:
        """Return the ids of one page."""
        return [one.txn_id for one in await world.coordinator.list_open(query)]

    async def test_oldest_deadline_first(self) -> None:
        """Open transactions of every process are listed, those with the oldest deadline first; ended ones are not."""
        async with self.data.open() as world, self.data.open() as other:
            assert await self.listed(world, OpenQuery()) == []
            late, early = await open_for(world, 3 * TIMEOUT_MS), await open_for(other, TIMEOUT_MS)
            middle = await open_for(world, 2 * TIMEOUT_MS, "ada")
            ended = [await open_for(world, TIMEOUT_MS) for _ in range(2)]
            await commit(world, ended[0].txn_id)
            await abort(other, ended[1].txn_id)
            for process in (world, other):
                assert await self.listed(process, OpenQuery()) == [early.txn_id, middle.txn_id, late.txn_id]
                found = await process.coordinator.list_open(OpenQuery())
                assert [one.state for one in found] == [State.OPEN] * 3
                assert [one.deadline_ms for one in found] == [early.deadline_ms, middle.deadline_ms, late.deadline_ms]
                assert [one.principal for one in found] == ["", "ada", ""]

    async def test_pages(self) -> None:
        """Asking for what comes after the last one of a page visits each once, also where deadlines are equal."""
        async with self.data.open() as world:
            began = [await open_for(world, TIMEOUT_MS + number // 4) for number in range(10)]
            seen: list[TxnID] = []
            after: TxnID | None = None
            while page := await self.listed(world, OpenQuery(after=after, limit=Limit(3))):
                assert len(page) <= 3
                assert not {*page} & {*seen}, "a page that was there before: a caller would never end"
                seen += page
                after = page[-1]
            assert sorted(seen) == sorted(one.txn_id for one in began)
            deadlines = {one.txn_id: one.deadline_ms for one in began}
            assert [deadlines[one] for one in seen] == sorted(deadlines.values())

    async def test_page_after_one_that_has_ended(self) -> None:
        """A listing goes on behind a transaction that has ended in the meantime."""
        async with self.data.open() as world:
            began = [(await open_for(world, TIMEOUT_MS + number)).txn_id for number in range(4)]
            await abort(world, began[1])
            assert await self.listed(world, OpenQuery(after=began[1])) == began[2:]

    async def test_ages(self) -> None:
        """Only those that began at least so long ago are listed, whatever their deadline."""
        async with self.data.open() as world:
            old = await begin(world, 5 * TIMEOUT_MS)
            await self.data.pass_time(2_000)
            young = await begin(world)
            assert await self.listed(world, OpenQuery(age_ms_min=2_000)) == [old]
            assert await self.listed(world, OpenQuery(age_ms_min=2_001)) == []
            assert await self.listed(world, OpenQuery(age_ms_min=0)) == [young, old]


class OutstandingRules(CoordinatorRules):
    """Who looks for what is stuck finds what ended transactions have left, in pages by id."""

    data: WorldHarness

    async def outstanding(self, world: World, after: TxnID | None = None, items: int = 100) -> list[TxnID]:
        """Return the ids of one page."""
        return [one.txn_id for one in await world.coordinator.outstanding(after, Limit(items))]

    @requires(METADATA_FAMILY)
    async def test_outstanding(self) -> None:
        """
        What ended and is not settled is told with its outcome, where it is left and how much: until it is settled.

        What is open, or did nothing, is not among them.
        """
        async with self.data.open() as world, self.data.open() as other:
            segment, subscription = world.buffer.segment, world.acks.subscription
            position = await committed_entry(world)
            kept, dropped, still, idle = [await begin(world) for _ in range(4)]
            for txn in (kept, dropped, still):
                await write(world, txn)
            await acknowledge(world, kept, position)
            assert await self.outstanding(other) == []
            world.participants.out_of_reach = {Participant(segment, subscription)}
            for txn in (kept, idle):
                await commit(world, txn)
            await abort(world, dropped)
            assert await self.outstanding(other) == [kept, dropped]
            assert (await world.coordinator.settle(kept)).left
            await world.coordinator.settle(dropped)
            for process in (world, other):
                (left,) = await process.coordinator.outstanding(None, Limit(100))
                assert left.ended is not None
                assert (left.txn_id, left.ended.state, left.operations) == (kept, State.COMMITTED, 1)
                assert left.ended.finalized_ms is not None
                assert left.ended.participants == {Participant(segment, subscription)}
            world.participants.out_of_reach = set()
            await other.coordinator.settle(kept)
            assert await self.outstanding(world) == []

    @requires(METADATA_FAMILY)
    async def test_outstanding_pages(self) -> None:
        """Each is told once, in the order of their ids, however they lie between those that are open."""
        async with self.data.open() as world:
            ended: list[TxnID] = []
            for number in range(9):
                txn = await begin(world)
                await write(world, txn)
                await write(world, txn, branch=1)
                if number % 3:
                    await abort(world, txn)
                    ended.append(txn)
            seen: list[TxnID] = []
            while page := await self.outstanding(world, seen[-1] if seen else None, 2):
                assert len(page) <= 2
                assert not {*page} & {*seen}, "a page that was there before: a caller would never end"
                seen += page
            assert seen == sorted(ended)
            # Also behind one that was settled in the meantime.
            await world.coordinator.settle(ended[1])
            assert await self.outstanding(world, ended[1]) == sorted(ended)[2:]


class WatchRules(CoordinatorRules):
    """Who waits for an end is told."""

    async def test_ended_already(self) -> None:
        """What has ended is returned at once, and only that."""
        async with self.data.open() as world, self.data.open() as other:
            kept, dropped, still = await begin(world), await begin(world), await begin(world)
            await commit(world, kept)
            await abort(world, dropped)
            for process in (world, other):
                found = await self.soon(process.coordinator.watch_ended(frozenset({kept, dropped, still})))
                assert found == {kept: State.COMMITTED, dropped: State.ABORTED}

    async def test_woken_by_an_end(self) -> None:
        """Who waits is woken when one of them ends, in whichever process, and not before."""
        async with self.data.open() as world, self.data.open() as other:
            for process in (world, other):
                for end, state in ((commit, State.COMMITTED), (abort, State.ABORTED)):
                    txn, still = await begin(world), await begin(world)
                    async with self.started(world.coordinator.watch_ended(frozenset({txn, still}))) as waiting:
                        assert not waiting.done()
                        await end(process, txn)
                        assert await self.soon(waiting) == {txn: state}

    async def test_waiting_reads_nothing(self) -> None:
        """
        While nothing changes, waiting takes no step to the stores; what others begin is looked at once at the most.

        If this fails, check that ``watch_ended`` waits for a watch, and asks nobody in a loop. A watch may wake late,
        and for another transaction of the same coordinator; but then it is quiet.
        """
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            async with self.started(world.coordinator.watch_ended(frozenset({txn}))) as waiting:
                before = world.line.steps
                for _ in range(_BEGUN):
                    await begin(other)
                quiet = 0
                for _ in range(20):
                    last = world.line.steps
                    await self.data.settle()
                    quiet = quiet + 1 if world.line.steps == last else 0
                assert quiet >= 10
                assert world.line.steps - before <= _BEGUN * _LOOK_STEPS_MAX
                assert not waiting.done()

    async def test_unknown_counts_as_committed(self) -> None:
        """One that is not known, because it was forgotten, counts as ended COMMITTED."""
        async with self.data.open() as world:
            still = await begin(world)
            unknown = TxnID(still.coordinator, still.number + 10**6)
            found = await self.soon(world.coordinator.watch_ended(frozenset({unknown, still})))
            assert found == {unknown: State.COMMITTED}

    async def test_closing_ends_the_wait(self) -> None:
        """Closing the coordinator ends a waiting ``watch_ended`` with Closed."""
        async with self.data.open() as world:
            txn = await begin(world)
            async with self.started(world.coordinator.watch_ended(frozenset({txn}))) as waiting:
                await world.coordinator.close()
                with pytest.raises(Closed):
                    await self.soon(waiting)
