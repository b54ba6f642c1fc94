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
    """Open transactions are listed in pages."""

    async def listed(self, world: World, query: OpenQuery) -> list[TxnID]:
        """Return the ids of one page."""
        return [one.txn_id for one in await world.coordinator.list_open(query)]

    async def test_oldest_deadline_first(self) -> None:
        """Open transactions of all processes are listed, the earliest deadline first; ended ones are not listed."""
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
        """Pages that continue after the last transaction list each once, also among equal deadlines."""
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
        """A listing continues after a transaction that has ended in the meantime."""
        async with self.data.open() as world:
            began = [(await open_for(world, TIMEOUT_MS + number)).txn_id for number in range(4)]
            await abort(world, began[1])
            assert await self.listed(world, OpenQuery(after=began[1])) == began[2:]

    async def test_ages(self) -> None:
        """
        With a minimum age, only transactions that began at least that long ago are listed, whatever their deadline.
        """
        async with self.data.open() as world:
            old = await begin(world, 5 * TIMEOUT_MS)
            await self.data.pass_time(2_000)
            young = await begin(world)
            assert await self.listed(world, OpenQuery(age_ms_min=2_000)) == [old]
            assert await self.listed(world, OpenQuery(age_ms_min=2_001)) == []
            assert await self.listed(world, OpenQuery(age_ms_min=0)) == [young, old]


class OutstandingRules(CoordinatorRules):
    """``outstanding`` lists what ended transactions have left to settle, in pages by id."""

    data: WorldHarness

    async def outstanding(self, world: World, after: TxnID | None = None, items: int = 100) -> list[TxnID]:
        """Return the ids of one page."""
        return [one.txn_id for one in await world.coordinator.outstanding(after, Limit(items))]

    @requires(METADATA_FAMILY)
    async def test_outstanding(self) -> None:
        """
        Until it is settled, an ended transaction is listed with its outcome, its remaining participants and operations.

        Open transactions, and those without operations, are not listed.
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
        """Each transaction is listed once, in the order of ids, also between open transactions."""
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
            # A page also continues after a transaction that was settled in the meantime.
            await world.coordinator.settle(ended[1])
            assert await self.outstanding(world, ended[1]) == sorted(ended)[2:]


class EndedWatchRules(CoordinatorRules):
    """``watch_ended`` reports the end of transactions."""

    async def test_ended_already(self) -> None:
        """Transactions that have already ended are returned immediately; open ones are not included."""
        async with self.data.open() as world, self.data.open() as other:
            kept, dropped, still = await begin(world), await begin(world), await begin(world)
            await commit(world, kept)
            await abort(world, dropped)
            for process in (world, other):
                found = await self.soon(process.coordinator.watch_ended(frozenset({kept, dropped, still})))
                assert found == {kept: State.COMMITTED, dropped: State.ABORTED}

    async def test_woken_by_an_end(self) -> None:
        """A wait returns when one of its transactions ends in any process, and not before."""
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
        A wait makes no store calls while nothing changes; each begin of another process costs at most one look.

        If this fails, check that ``watch_ended`` waits for a watch and does not poll. A watch may wake late, and for
        other transactions of the same coordinator; after that it must be quiet.
        """
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            async with self.started(world.coordinator.watch_ended(frozenset({txn}))) as waiting:
                before = world.connection.steps
                for _ in range(_BEGUN):
                    await begin(other)
                quiet = 0
                for _ in range(20):
                    last = world.connection.steps
                    await self.data.settle()
                    quiet = quiet + 1 if world.connection.steps == last else 0
                assert quiet >= 10
                assert world.connection.steps - before <= _BEGUN * _LOOK_STEPS_MAX
                assert not waiting.done()

    async def test_unknown_counts_as_committed(self) -> None:
        """An unknown transaction was forgotten, and counts as COMMITTED."""
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
