"""Rules of IPendingAckStore: acknowledgments that take effect in the step of their transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from txnframework.errors import (
    TransactionConflict,
    VersionMismatch,
)
from txnframework.model import Ack, AckRequest, Branch, Position, State, TxnID
from txnframework.model.positions import EARLIEST
from txnframework.testing._suites._coordinator._case import committed_entry, is_acknowledged, state_in
from txnframework.testing._suites._coordinator._joint_case import (
    OneStepRules,
    acknowledge_in_steps,
    joint_of,
    only_cursor,
    plan_ack,
    planned_ack,
    read_texts,
    request_of,
    several,
    txn_of,
)
from txnframework.testing._suites._processes import abort, begin, commit, held_up
from txnframework.testing.world import World


class JointAckRules(OneStepRules):
    """A message is acknowledged with the step, and by one transaction only."""

    async def test_acknowledgments_in_the_same_write(self) -> None:
        """The cursor moves with the commit, and the message stays acknowledged for every process."""
        async with self.data.open() as world, self.data.open() as other:
            at = await committed_entry(other)
            txn, planned = await planned_ack(world, at)
            written = world.connection.writes
            done = await joint_of(world).commit_jointly(request_of(world, txn, b"out", acks=(planned,)))
            assert world.connection.writes == written + 1
            await world.acks.finish_joint(planned, only_cursor(done.cursors))
            assert await is_acknowledged(world, at)
            assert await is_acknowledged(other, at)
            with pytest.raises(TransactionConflict):
                await acknowledge_in_steps(other, await begin(other), at)

    async def test_a_message_that_is_acknowledged_already(self) -> None:
        """Such a message, and one that was received before a seek, are left to ``add``, which reports them."""
        async with self.data.open() as world, self.data.open() as other:
            at = await committed_entry(other)
            txn = await begin(other)
            await acknowledge_in_steps(other, txn, at)
            await commit(other, txn)
            await other.coordinator.settle(txn)
            assert await plan_ack(world, at) is None
            await other.cursor.seek(EARLIEST)
            request = AckRequest(Branch(await joint_of(world).reserve_id()), (Ack(at),), incarnation=1)
            assert await world.acks.plan_joint((request,)) is None

    async def test_an_acknowledgment_that_another_transaction_holds(self) -> None:
        """While another transaction holds an acknowledgment, the step is refused; later it is not."""
        async with self.data.open() as world, self.data.open() as other:
            at, free = await committed_entry(other), await committed_entry(other)
            txn = await begin(other)
            await acknowledge_in_steps(other, txn, at)
            await self._refused(world, at)
            await abort(other, txn)
            await other.coordinator.settle(txn)
            joint, planned = await planned_ack(world, at)
            done = await joint_of(world).commit_jointly(request_of(world, joint, acks=(planned,)))
            await world.acks.finish_joint(planned, only_cursor(done.cursors))
            assert await is_acknowledged(other, at)
            assert not await is_acknowledged(other, free)

    async def test_an_acknowledgment_between_plan_and_step(self) -> None:
        """One that another transaction stores after the plan, and one that moves the cursor, refuse the step."""
        async with self.data.open() as world, self.data.open() as other:
            for ends in (False, True):
                at = await committed_entry(other)
                joint, planned = await planned_ack(world, at)
                txn = await begin(other)
                await acknowledge_in_steps(other, txn, at)
                if ends:
                    await commit(other, txn)
                    await other.coordinator.settle(txn)
                with pytest.raises(VersionMismatch):
                    await joint_of(world).commit_jointly(request_of(world, joint, b"x", acks=(planned,)))
                await world.acks.finish_joint(planned, None)
                await self.nothing_of(other, joint)
                if not ends:
                    await abort(other, txn)
                    await other.coordinator.settle(txn)
            assert await is_acknowledged(world, at)

    async def test_one_of_two_transactions_acknowledges(self) -> None:
        """However a step and a transaction of several steps meet at one message, at most one of them succeeds."""
        for step in range(1, 8):
            async with self.data.open() as world, self.data.open() as other:
                at = await committed_entry(other)
                txn = await begin(other)
                async with held_up(other.connection, step, acknowledge_in_steps(other, txn, at)) as (task, _):
                    planned = await plan_ack(world, at)
                    if planned is None:
                        made = False
                    else:
                        try:
                            done = await joint_of(world).commit_jointly(
                                request_of(world, txn_of(planned), acks=(planned,))
                            )
                            made = True
                        except VersionMismatch:
                            made = False
                        await world.acks.finish_joint(planned, only_cursor(done.cursors) if made else None)
                    other.connection.restore()
                    (outcome,) = await asyncio.gather(task, return_exceptions=True)
                if outcome is None:
                    await commit(other, txn)
                    await other.coordinator.settle(txn)
                else:
                    await abort(other, txn)
                    await other.coordinator.settle(txn)
                assert [made, outcome is None].count(True) <= 1, f"both took effect when held at step {step}"
                assert await is_acknowledged(world, at) == (made or outcome is None)

    async def test_acknowledgments_of_several_transactions(self) -> None:
        """Transactions that share a step share the move of a cursor; each is committed, with its entries."""
        async with self.data.open() as world, self.data.open() as other:
            messages = [await committed_entry(other) for _ in range(3)]
            txns = [await joint_of(world).reserve_id() for _ in messages]
            planned = await world.acks.plan_joint(await _requests(world, txns, messages))
            assert planned is not None
            assert [branch.txn_id for branch, _ in planned.move.parts] == txns
            written = world.connection.writes
            done = await joint_of(world).commit_jointly(several(world, txns, planned))
            assert world.connection.writes == written + 1
            await world.acks.finish_joint(planned, only_cursor(done.cursors))
            assert [await is_acknowledged(other, at) for at in messages] == [True] * 3
            assert [await state_in(other, txn) for txn in txns] == [State.COMMITTED] * 3
            assert (await read_texts(other))[-3:] == [b"0", b"1", b"2"]

    async def test_several_transactions_are_refused_together(self) -> None:
        """If one cannot acknowledge its message, none of them is written; the others can be, in another step."""
        async with self.data.open() as world, self.data.open() as other:
            messages = [await committed_entry(other) for _ in range(3)]
            txns = [await joint_of(world).reserve_id() for _ in messages]
            planned = await world.acks.plan_joint(await _requests(world, txns, messages))
            assert planned is not None
            taken = await begin(other)
            await acknowledge_in_steps(other, taken, messages[1])
            with pytest.raises(VersionMismatch):
                await joint_of(world).commit_jointly(several(world, txns, planned))
            await world.acks.finish_joint(planned, None)
            for txn in txns:
                await self.nothing_of(other, txn)
            await commit(other, taken)
            await other.coordinator.settle(taken)
            requests = await _requests(world, txns, messages)
            assert await world.acks.plan_joint(requests) is None
            planned = await world.acks.plan_joint((requests[0], requests[2]))
            assert planned is not None
            done = await joint_of(world).commit_jointly(several(world, [txns[0], txns[2]], planned))
            await world.acks.finish_joint(planned, only_cursor(done.cursors))
            assert [await is_acknowledged(other, at) for at in messages] == [True] * 3

    async def test_two_transactions_with_one_message(self) -> None:
        """Two transactions that acknowledge one message are never in one plan."""
        async with self.data.open() as world:
            at = await committed_entry(world)
            txns = [await joint_of(world).reserve_id() for _ in range(2)]
            assert await world.acks.plan_joint(await _requests(world, txns, [at, at])) is None

    async def test_plans_follow_one_another(self) -> None:
        """A second plan of a subscription waits until the first is finished, and then expects the moved cursor."""
        async with self.data.open() as world:
            first, second = await committed_entry(world), await committed_entry(world)
            joint, planned = await planned_ack(world, first)
            waiting = asyncio.ensure_future(plan_ack(world, second))
            await self.data.settle()
            assert not waiting.done()
            done = await joint_of(world).commit_jointly(request_of(world, joint, acks=(planned,)))
            await world.acks.finish_joint(planned, only_cursor(done.cursors))
            later = await waiting
            assert later is not None
            done = await joint_of(world).commit_jointly(request_of(world, txn_of(later), acks=(later,)))
            await world.acks.finish_joint(later, only_cursor(done.cursors))
            assert await is_acknowledged(world, first)
            assert await is_acknowledged(world, second)

    async def test_a_plan_that_is_given_up(self) -> None:
        """A plan without a step changes nothing, and the next plan follows."""
        async with self.data.open() as world:
            at = await committed_entry(world)
            _, planned = await planned_ack(world, at)
            await world.acks.finish_joint(planned, None)
            assert not await is_acknowledged(world, at)
            joint, planned = await planned_ack(world, at)
            done = await joint_of(world).commit_jointly(request_of(world, joint, acks=(planned,)))
            await world.acks.finish_joint(planned, only_cursor(done.cursors))
            assert await is_acknowledged(world, at)

    async def _refused(self, world: World, at: Position) -> None:
        """Check that a step that acknowledges a message is refused."""
        joint, planned = await planned_ack(world, at)
        with pytest.raises(VersionMismatch):
            await joint_of(world).commit_jointly(request_of(world, joint, b"x", acks=(planned,)))
        await world.acks.finish_joint(planned, None)
        await self.nothing_of(world, joint)


async def _requests(world: World, txns: Sequence[TxnID], messages: Sequence[Position]) -> tuple[AckRequest, ...]:
    """Return the acknowledgment of one message for each transaction."""
    incarnation = (await world.cursor.load()).incarnation
    return tuple([AckRequest(Branch(txn), (Ack(at),), incarnation) for txn, at in zip(txns, messages, strict=True)])
