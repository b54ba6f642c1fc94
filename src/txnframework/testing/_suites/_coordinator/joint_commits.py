"""Rules of IJointCoordinator and IPlannableBuffer: transactions that are one step of a database."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import (
    InvalidTransactionState,
    LedgerSealed,
    OutcomeUnknown,
    TransactionNotFound,
    VersionMismatch,
)
from txnframework.interfaces import (
    IPlannableBuffer,
)
from txnframework.model import Append, Branch, State
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.joint import JointCommitted
from txnframework.model.positions import EARLIEST
from txnframework.model.reads import Isolation, ReadRequest
from txnframework.model.transactions import OpenQuery
from txnframework.testing._suites._coordinator._case import state_in
from txnframework.testing._suites._coordinator._joint_case import (
    ALL,
    LateSteps,
    OneStepRules,
    SlowReplies,
    commit_texts,
    joint_of,
    read_texts,
    request_of,
    several,
)
from txnframework.testing._suites._coordinator._rows_case import coordinator_over
from txnframework.testing._suites._processes import begin, commit, held_up
from txnframework.testing.clock import run_ready


class JointCommitRules(OneStepRules):
    """A transaction in one step is there for every process as a whole, or not at all."""

    async def test_ids_never_repeat(self) -> None:
        """Reserved ids and those of other transactions are all different, in every process."""
        async with self.data.open() as world, self.data.open() as other:
            found = [await joint_of(one).reserve_id() for one in (world, other) for _ in range(10)]
            found += [await begin(one) for one in (world, other)]
            assert len(set(found)) == len(found)

    async def test_a_reserved_id_is_no_transaction(self) -> None:
        """An id that is never used is not listed, and holds no reader back."""
        async with self.data.open() as world, self.data.open() as other:
            await joint_of(world).reserve_id()
            assert await other.coordinator.list_open(OpenQuery()) == ()
            done = await commit_texts(world, b"x")
            assert await read_texts(other) == [b"x"]
            assert done.positions is not None

    async def test_everything_in_one_write(self) -> None:
        """One write stores the entries; each process describes a committed transaction with nothing outstanding."""
        async with self.data.open() as world, self.data.open() as other:
            joint = joint_of(world)
            txn = await joint.reserve_id()
            written = world.connection.writes
            done = await joint.commit_jointly(request_of(world, txn, b"x", b"y", principal="ada"))
            assert world.connection.writes == written + 1
            for process in (world, other):
                found = await process.coordinator.describe(txn)
                assert (found.state, found.principal, found.participants) == (State.COMMITTED, "ada", frozenset())
                assert found.counts(0)
                assert await process.coordinator.outstanding(None, ALL) == ()
            assert done.positions is not None
            ((first, second),) = done.positions
            assert first < second
            page = await other.buffer.read(ReadRequest(EARLIEST, ALL, Isolation.READ_COMMITTED))
            assert [(one.position, one.branch) for one in page.entries] == [(at, Branch(txn)) for at in (first, second)]

    async def test_waiting_readers_wake(self) -> None:
        """Readers that wait in ``advanced`` see the entries: in another process, and in the one that made the step."""
        async with self.data.open() as world, self.data.open() as other:
            end = await world.buffer.max_read_position()
            waiting = [asyncio.ensure_future(one.buffer.advanced(end)) for one in (world, other)]
            await run_ready()
            done = await commit_texts(world, b"x")
            assert done.positions is not None
            await IPlannableBuffer(world.buffer).appended_jointly(done.positions[0][-1])
            await self.data.settle()
            assert await asyncio.gather(*waiting) == [done.positions[0][-1]] * 2

    async def test_entries_are_behind_what_was_seen(self) -> None:
        """``tail_seen`` is before the entries of later steps, and names the last entry after ``appended_jointly``."""
        async with self.data.open() as world, self.data.open() as other:
            buffer = IPlannableBuffer(world.buffer)
            await commit_texts(other, b"earlier")
            before = await buffer.tail_seen()
            done = await commit_texts(world, b"x")
            assert done.positions is not None
            assert before < done.positions[0][0]
            await buffer.appended_jointly(done.positions[0][-1])
            assert await buffer.tail_seen() >= done.positions[0][-1]

    async def test_open_transactions_hold_the_entries_back(self) -> None:
        """Entries behind those of an open transaction are read after it has ended, in the order of their positions."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(other)
            data = encode_entry([EntryMessage(None, b"open", (), 0, 0)], "suite", Branch(txn))
            await other.buffer.append((Append(data, 1, Branch(txn)),))
            await commit_texts(world, b"x")
            assert await read_texts(world) == await read_texts(other) == []
            await commit(other, txn)
            await other.coordinator.settle(txn)
            assert await read_texts(world) == await read_texts(other) == [b"open", b"x"]

    async def test_a_sealed_segment(self) -> None:
        """A sealed segment refuses everything, and the id stays unknown."""
        async with self.data.open() as world, self.data.open() as other:
            await other.ledger.seal()
            txn = await joint_of(world).reserve_id()
            with pytest.raises(LedgerSealed):
                await joint_of(world).commit_jointly(request_of(world, txn, b"x"))
            await self.nothing_of(other, txn)

    async def test_a_lost_reply(self) -> None:
        """After a lost reply, the header shows that the step was applied."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await joint_of(world).reserve_id()
            world.connection.lose(1)
            done = await joint_of(world).commit_jointly(request_of(world, txn, b"x"))
            assert done == JointCommitted(None, None)
            assert await state_in(other, txn) is State.COMMITTED
            assert await read_texts(other) == [b"x"]

    async def test_several_transactions(self) -> None:
        """Transactions that share a step are committed by one write, and have one outcome after a lost reply."""
        async with self.data.open() as world, self.data.open() as other:
            for loses in (False, True):
                txns = [await joint_of(world).reserve_id() for _ in range(3)]
                written = world.connection.writes
                if loses:
                    world.connection.lose(1)
                done = await joint_of(world).commit_jointly(several(world, txns))
                assert (done.positions is None) == loses
                if not loses:
                    assert world.connection.writes == written + 1
                assert [await state_in(other, txn) for txn in txns] == [State.COMMITTED] * 3
            assert await read_texts(other) == [b"0", b"1", b"2"] * 2

    async def test_a_late_step_of_several(self) -> None:
        """A step that was given up is refused when it comes late, so none of its transactions is committed."""
        async with self.data.open() as world, self.data.open() as other:
            late = LateSteps(world.store)
            async with coordinator_over(self.data, world, late) as joint:
                txns = [await joint.reserve_id() for _ in range(2)]
                with pytest.raises(InvalidTransactionState):
                    await joint.commit_jointly(several(world, txns))
                with pytest.raises(VersionMismatch):
                    await world.store.apply(*late.late)
            await self.nothing_of(other, txns[1])

    async def test_a_late_step(self) -> None:
        """A step that was given up is aborted, and refused when it comes late, also after a second attempt."""
        async with self.data.open() as world, self.data.open() as other:
            late = LateSteps(world.store)
            async with coordinator_over(self.data, world, late) as joint:
                txn = await joint.reserve_id()
                with pytest.raises(InvalidTransactionState) as caught:
                    await joint.commit_jointly(request_of(world, txn, b"late"))
                assert caught.value.actual is State.ABORTED
                assert await state_in(other, txn) is State.ABORTED
                await commit_texts(world, b"second")
                with pytest.raises(VersionMismatch):
                    await world.store.apply(*late.late)
            assert await read_texts(other) == [b"second"]

    async def test_a_reply_that_is_lost_too_late(self) -> None:
        """If the header may be collected by the time the reply is lost, the outcome is unknown, and not ABORTED."""
        async with self.data.open() as world, self.data.open() as other:

            async def forget() -> None:
                await self.data.pass_time(self.data.transactions.retention_ms)
                await self.forget_ended(world)

            slow = SlowReplies(world.store, forget)
            async with coordinator_over(self.data, world, slow) as joint:
                txn = await joint.reserve_id()
                with pytest.raises(OutcomeUnknown):
                    await joint.commit_jointly(request_of(world, txn, b"x"))
            with pytest.raises(TransactionNotFound):
                await other.coordinator.describe(txn)
            assert await read_texts(other) == [b"x"]

    async def test_cut_off_after_the_step(self) -> None:
        """If the header cannot be read after a lost reply, the outcome is unknown; the header has it."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await joint_of(world).reserve_id()
            world.connection.cut_at(1)
            with pytest.raises(OutcomeUnknown):
                await joint_of(world).commit_jointly(request_of(world, txn, b"x"))
            world.connection.restore()
            assert await state_in(other, txn) is State.COMMITTED
            assert await read_texts(other) == [b"x"]

    async def test_killed_before_the_step(self) -> None:
        """A process that is killed before the step leaves nothing."""
        async with self.data.open() as survivor:
            async with self.data.open() as world:
                txn = await joint_of(world).reserve_id()
                work = joint_of(world).commit_jointly(request_of(world, txn, b"x"))
                async with held_up(world.connection, 1, work) as (task, reached):
                    assert reached
                    world.connection.is_cut = True
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            await self.nothing_of(survivor, txn)

    async def test_forgotten_transactions_stay_committed(self) -> None:
        """Entries can be read after the header was collected."""
        async with self.data.open() as world, self.data.open() as other:
            await commit_texts(world, b"x")
            await self.forget_ended(world)
            assert await read_texts(other) == [b"x"]
