"""Rules of list_open and watch_ended."""

from __future__ import annotations

import pytest

from txnframework.errors import Closed
from txnframework.model import Limit, OpenQuery, State, TxnID
from txnframework.testing._suites._coordinator._case import CoordinatorRules, open_for
from txnframework.testing._suites._processes import TIMEOUT_MS, abort, begin, commit
from txnframework.testing.world import World


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
        """While nothing changes, waiting takes no step to the stores."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            async with self.started(world.coordinator.watch_ended(frozenset({txn}))) as waiting:
                before = world.line.steps
                for _ in range(5):
                    await begin(other)
                    await self.data.settle()
                assert world.line.steps == before
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
