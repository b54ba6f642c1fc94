"""Rules of announcements, of the end of a segment and of plans."""

from __future__ import annotations

import pytest

from txnframework.errors import Closed, EntryTrimmed
from txnframework.interfaces import IInPlaceBuffer, IPlannableBuffer
from txnframework.model import EARLIEST, Branch, EntryRange, Limit, Position, ReadRequest
from txnframework.testing._suites._buffer._case import (
    ENDS_WHEN_SEALED,
    BufferRules,
    abort,
    begin,
    commit,
    send,
    visible,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World


class AnnouncementRules(BufferRules):
    """Readers wait for announcements and never poll."""

    async def test_woken_by_a_plain_append(self) -> None:
        """A wait beyond a position ends when a message becomes readable, whichever process wrote it."""
        async with self.data.open() as world, self.data.open() as other:
            for writer in (world, other):
                beyond = await world.buffer.max_read_position()
                async with self.started(world.buffer.advanced(beyond)) as waiting:
                    assert not waiting.done()
                    position = await send(writer, "x")
                    assert await self.soon(waiting) >= position

    async def test_answers_at_once_when_it_is_beyond(self) -> None:
        """A wait for an announced position returns immediately."""
        async with self.data.open() as world:
            position = await send(world, "x")
            before = Position(position.ledger_id, position.entry_id - 1)
            assert await self.soon(world.buffer.advanced(before)) >= position

    @requires(IInPlaceBuffer)
    async def test_woken_by_the_end_of_a_transaction(self) -> None:
        """
        A reader behind an open transaction waits while it is written to, and wakes when it ends in any process.

        If this fails, check that a decision wakes the watchers of all segments that the transaction wrote to.
        """
        async with self.data.open() as world, self.data.open() as other:
            for end in (commit, abort):
                txn = await begin(other)
                inside = await send(other, "inside", txn)
                beyond = await world.buffer.max_read_position()
                assert beyond < inside
                async with self.started(world.buffer.advanced(beyond)) as waiting:
                    await send(world, "behind", txn)
                    await self.data.settle()
                    assert not waiting.done()
                    await other.coordinator.settle((await end(other, txn)).txn_id)
                    assert await self.soon(waiting) >= inside

    async def test_closing_ends_the_wait(self) -> None:
        """Closing the buffer ends a waiting ``advanced`` with Closed; close may be repeated."""
        async with self.data.open() as world:
            beyond = await world.buffer.max_read_position()
            async with self.started(world.buffer.advanced(beyond)) as waiting:
                await world.buffer.close()
                await world.buffer.close()
                with pytest.raises(Closed):
                    await self.soon(waiting)

    @requires(ENDS_WHEN_SEALED)
    async def test_finished(self) -> None:
        """A segment is finished at its end after it is sealed and everything in it is decided, and not before."""
        async with self.data.open() as world, self.data.open() as other:
            plain = await send(world, "plain")
            txn = await begin(world)
            inside = await send(world, "inside", txn)
            assert not await world.buffer.finished(inside)
            await other.ledger.seal()
            for process in (world, other):
                assert not await process.buffer.finished(plain)
            await abort(world, txn)
            for process in (world, other):
                assert await visible(process) == ["plain"]
                assert await process.buffer.finished(await process.buffer.max_read_position())
                assert not await process.buffer.finished(EARLIEST)

    @requires(ENDS_WHEN_SEALED)
    async def test_sealed_and_decided_ends_the_wait(self) -> None:
        """
        ``advanced`` at the end of a sealed and decided segment returns a position that is not beyond: the end is final.
        """
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            inside = await send(world, "inside", txn)
            beyond = await world.buffer.max_read_position()
            await other.ledger.seal()
            async with self.started(world.buffer.advanced(beyond)) as waiting:
                assert not waiting.done(), "an open transaction may still become visible"
                await other.coordinator.settle((await commit(other, txn)).txn_id)
                end = await self.soon(waiting)
            assert end >= inside
            assert await self.soon(world.buffer.advanced(end)) <= end
            assert await world.buffer.finished(end)

    async def test_sealing_ends_a_wait_that_has_begun(self) -> None:
        """A reader that waits at the end is woken when another process seals the segment."""
        async with self.data.open() as world, self.data.open() as other:
            end = max(await send(world, "last"), await world.buffer.max_read_position())
            async with self.started(world.buffer.advanced(end)) as waiting:
                assert not waiting.done()
                await other.ledger.seal()
                assert await self.soon(waiting) <= end

    async def test_sealed_while_empty(self) -> None:
        """A segment that is sealed while empty is finished at its start."""
        async with self.data.open() as world:
            start = await world.buffer.max_read_position()
            await world.ledger.seal()
            assert await self.soon(world.buffer.advanced(start)) <= start
            assert await world.buffer.finished(start)


class PlanRules(BufferRules):
    """A range is planned once and read without the buffer."""

    @requires(IPlannableBuffer)
    async def test_plan_names_what_to_skip(self) -> None:
        """A plan has the requested range and its aborted branches; reading by it returns what is visible."""
        async with self.data.open() as world:
            kept, dropped = await begin(world), await begin(world)
            await send(world, "plain")
            await send(world, "kept", kept)
            await send(world, "lost", kept, 6)
            await send(world, "dropped", dropped)
            await commit(world, kept)
            await abort(world, dropped)
            upto = await world.buffer.max_read_position()
            plan = await plannable(world).plan(EARLIEST, upto)
            assert plan.entries == EntryRange(EARLIEST, upto)
            assert {Branch(kept, 6), Branch(dropped)} <= plan.aborted
            assert Branch(kept) not in plan.aborted

    @requires(IPlannableBuffer)
    async def test_plan_is_never_shortened(self) -> None:
        """
        A range up to a position that one process announced can be planned by any other, whatever has begun since.

        If this fails, check that a process with a lower position waits or reads on, and does not shorten the plan.
        """
        async with self.data.open() as world:
            await send(world, "a")
            upto = await world.buffer.max_read_position()
            async with self.data.open() as other:
                txn = await begin(other)
                await send(other, "inside", txn)
                async with self.data.open() as fresh:
                    for process in (other, fresh, world):
                        plan = await self.soon(plannable(process).plan(EARLIEST, upto))
                        assert plan.entries == EntryRange(EARLIEST, upto)
                await abort(other, txn)

    @requires(IPlannableBuffer)
    async def test_plan_outlives_the_transaction(self) -> None:
        """A plan made long after the transactions were forgotten still lists the aborted branches of its range."""
        async with self.data.open() as world:
            txn = await begin(world)
            await send(world, "dropped", txn)
            await abort(world, txn)
            await self.forget_ended(world)
            upto = await world.buffer.max_read_position()
            assert Branch(txn) in (await plannable(world).plan(EARLIEST, upto)).aborted
        async with self.data.open() as fresh:
            assert Branch(txn) in (await self.soon(plannable(fresh).plan(EARLIEST, upto))).aborted

    @requires(IInPlaceBuffer)
    async def test_trim_stops_at_what_is_undecided(self) -> None:
        """
        Trim stops at the max read position; reading trimmed entries raises EntryTrimmed, and the rest can be read.
        """
        async with self.data.open() as world:
            first = await send(world, "first")
            await world.ledger.roll()
            txn = await begin(world)
            inside = await send(world, "inside", txn)
            await world.ledger.roll()
            last = await send(world, "last")
            await world.buffer.trim(last.ledger_id)
            await commit(world, txn)
            assert await visible(world, first) == ["inside", "last"]
            await world.buffer.trim(last.ledger_id)
            with pytest.raises(EntryTrimmed):
                await world.buffer.read(ReadRequest(first, Limit(10)))
            assert await visible(world, inside) == ["last"]


def plannable(world: World) -> IPlannableBuffer:
    """Return the buffer as an IPlannableBuffer, which it must declare."""
    assert IPlannableBuffer.providedBy(world.buffer)
    return world.buffer
