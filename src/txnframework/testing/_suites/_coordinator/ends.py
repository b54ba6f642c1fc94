"""Rules of end: one final outcome, the same in all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from txnframework.errors import (
    InvalidTransactionState,
    NotTransactionOwner,
    OutcomeUnknown,
    TransactionNotFound,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.model import Action, End, State, Transaction, TxnID
from txnframework.testing._suites._coordinator._case import CoordinatorRules, open_for, outcome, state_in
from txnframework.testing._suites._processes import TIMEOUT_MS, abort, begin, commit, held_up, kill

ENDS = ((commit, State.COMMITTED), (abort, State.ABORTED))


class EndRules(CoordinatorRules):
    """A transaction ends once."""

    async def test_ended(self) -> None:
        """An ended transaction has its outcome, its end time and its branches, in all processes and after a restart."""
        async with self.data.open() as world, self.data.open() as other:
            committed, aborted = await begin(world), await begin(world)
            kept = await commit(world, committed, 0, 5)
            dropped = await abort(other, aborted)
            assert (kept.txn_id, kept.state, kept.branches) == (committed, State.COMMITTED, frozenset({0, 5}))
            assert (dropped.txn_id, dropped.state) == (aborted, State.ABORTED)
            for ended in (kept, dropped):
                assert ended.finalized_ms == self.data.now_ms()
                for process in (world, other):
                    assert await process.coordinator.describe(ended.txn_id) == ended
            assert [kept.counts(branch) for branch in (0, 5, 6)] == [True, True, False]
            assert not dropped.counts(0)
        async with self.data.open() as fresh:
            for ended in (kept, dropped):
                assert await fresh.coordinator.describe(ended.txn_id) == ended

    async def test_same_end_again(self) -> None:
        """Repeating an End in any process returns the same answer and changes nothing."""
        async with self.data.open() as world, self.data.open() as other:
            for end, _ in ENDS:
                txn = await begin(world)
                first = await end(world, txn)
                await self.data.pass_time(1_000)
                for process in (world, other):
                    assert await end(process, txn) == first

    async def test_other_end(self) -> None:
        """A different End raises InvalidTransactionState with the actual outcome, and changes nothing."""
        async with self.data.open() as world, self.data.open() as other:
            for (end, state), (opposite, _) in (ENDS, ENDS[::-1]):
                txn = await begin(world)
                ended = await end(world, txn)
                for process in (world, other):
                    with pytest.raises(InvalidTransactionState) as refused:
                        await opposite(process, txn)
                    assert (refused.value.txn_id, refused.value.actual) == (txn, state)
                    assert await process.coordinator.describe(txn) == ended

    async def test_other_branches(self) -> None:
        """A commit with other branches than the first commit is a different End: it raises InvalidTransactionState."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            ended = await commit(world, txn, 0, 5)
            for branches in ((0,), (0, 5, 6), (5,)):
                with pytest.raises(InvalidTransactionState) as refused:
                    await commit(other, txn, *branches)
                assert refused.value.actual is State.COMMITTED
            assert await world.coordinator.describe(txn) == ended
            assert await commit(other, txn, 5, 0) == ended

    async def test_end_of_unknown(self) -> None:
        """Ending a transaction that never began raises TransactionNotFound."""
        async with self.data.open() as world:
            known = await begin(world)
            for end, _ in ENDS:
                with pytest.raises(TransactionNotFound):
                    await end(world, TxnID(known.coordinator, known.number + 10**6))

    async def test_principals(self) -> None:
        """Only its principal may end a transaction that has one; other callers are refused and change nothing."""
        async with self.data.open() as world, self.data.open() as other:
            for action in Action:
                began = await open_for(world, TIMEOUT_MS, "ada")
                for process in (world, other):
                    for principal in ("", "eve"):
                        with pytest.raises(NotTransactionOwner):
                            await process.coordinator.end(End(began.txn_id, action, principal))
                    assert await process.coordinator.describe(began.txn_id) == began
                ended = await other.coordinator.end(End(began.txn_id, action, "ada"))
                assert ended.principal == "ada"
                with pytest.raises(NotTransactionOwner):
                    await world.coordinator.end(End(began.txn_id, action, "eve"))

    async def test_operators(self) -> None:
        """An operator can end a transaction of any principal; the principal is not changed."""
        async with self.data.open() as world, self.data.open() as other:
            for action in Action:
                began = await open_for(world, TIMEOUT_MS, "ada")
                ended = await other.coordinator.end(End(began.txn_id, action, "eve", operator=True))
                assert ended.principal == "ada"
                assert await world.coordinator.end(End(began.txn_id, action, "ada")) == ended

    async def test_no_principal(self) -> None:
        """A transaction without a principal can be ended by any caller that knows its id."""
        async with self.data.open() as world:
            txn = await begin(world)
            assert (await world.coordinator.end(End(txn, Action.COMMIT, "eve"))).state is State.COMMITTED

    async def test_racing_ends(self) -> None:
        """
        Racing Ends have one outcome, in any interleaving. Callers that requested it succeed, and the others receive it
        in an error.

        If this fails, check that the decision is one compare-and-set, and that the loser reads the decision.
        """
        async with self.data.open() as world, self.data.open() as other, self.data.open() as third:
            for ends in ((commit, abort), (abort, commit), (commit, commit), (abort, abort)):
                step, reached = 0, True
                while reached:
                    step += 1
                    txn = await begin(third)
                    async with held_up(world.connection, step, ends[0](world, txn)) as (task, reached):
                        second = await told(ends[1](other, txn))
                        world.connection.restore()
                        first = await told(task)
                    final = await outcome(third, txn)
                    asked = {commit: State.COMMITTED, abort: State.ABORTED}
                    for end, found in zip(ends, (first, second), strict=True):
                        if asked[end] is final:
                            assert isinstance(found, Transaction)
                        assert (found.state if isinstance(found, Transaction) else found) is final

    async def test_many_racing_ends(self) -> None:
        """Many racing Ends of different processes give one outcome per transaction."""
        async with self.data.open() as world, self.data.open() as other:
            for _ in range(10):
                txn = await begin(world)
                found = await asyncio.gather(
                    *(told(end(process, txn)) for process in (world, other) for end in (commit, abort, commit))
                )
                final = await outcome(other, txn)
                assert {one.state if isinstance(one, Transaction) else one for one in found} == {final}

    async def test_lost_reply(self) -> None:
        """A decision whose reply was lost is read back or raises OutcomeUnknown; the same End then succeeds."""
        async with self.data.open() as world, self.data.open() as other:
            for end, state in ENDS:
                txn, bystander = await begin(world), await begin(world)
                world.connection.lose(1)
                try:
                    assert (await end(world, txn)).state is state
                except OutcomeUnknown:
                    assert await state_in(other, txn) in (State.OPEN, state)
                world.connection.restore()
                assert (await end(world, txn)).state is state
                assert await outcome(other, txn) is state
                assert await state_in(other, bystander) is State.OPEN

    async def test_cut_off_while_deciding(self) -> None:
        """
        If the decision cannot be read back either, the End raises OutcomeUnknown; the same End later returns its
        outcome.
        """
        async with self.data.open() as world, self.data.open() as other:
            for end, state in ENDS:
                txn = await begin(world)
                world.connection.cut_at(1)
                with pytest.raises(OutcomeUnknown):
                    await end(world, txn)
                world.connection.restore()
                found = await state_in(other, txn)
                assert found in (State.OPEN, state)
                assert (await end(world, txn)).state is state

    async def test_end_refused_steps(self) -> None:
        """
        If the store is unavailable before the decision, the End raises Unavailable, and the transaction stays open.
        """
        async with self.data.open() as world, self.data.open() as other:
            for end, state in ENDS:
                txn = await begin(world)
                world.connection.refuse(1)
                with pytest.raises(Unavailable):
                    await end(world, txn)
                assert await state_in(other, txn) is State.OPEN
                assert (await end(world, txn)).state is state

    async def test_killed_while_deciding(self) -> None:
        """After a kill at any step of an End, the transaction is open or has the requested outcome, which is final."""
        async with self.data.open() as survivor:
            for end, state in ENDS:
                opposite = abort if end is commit else commit
                step, reached = 0, True
                while reached:
                    step += 1
                    txn = await begin(survivor)
                    async with (
                        self.data.open() as world,
                        held_up(world.connection, step, end(world, txn)) as (task, reached),
                    ):
                        await kill(world, task)
                    before = await state_in(survivor, txn)
                    assert before in (State.OPEN, state)
                    await told(opposite(survivor, txn))
                    final = await outcome(survivor, txn)
                    assert before is State.OPEN or final is before

    async def test_closing_while_deciding(self) -> None:
        """Closing during an End makes it return the outcome or raise OutcomeUnknown; close may be repeated."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await begin(world)
            async with held_up(world.connection, 2, commit(world, txn)) as (task, _):
                closing = asyncio.ensure_future(world.coordinator.close())
                await self.data.settle()
                world.connection.restore()
                await self.soon(closing)
                await world.coordinator.close()
                try:
                    assert (await self.soon(task)).state is State.COMMITTED
                except OutcomeUnknown:
                    assert await state_in(other, txn) in (State.OPEN, State.COMMITTED)
            with pytest.raises(TxnFrameworkError):
                await begin(world)


async def told(ending: Awaitable[Transaction]) -> Transaction | State:
    """Return the answer to an End: the transaction, or the actual outcome if it was refused."""
    try:
        return await ending
    except InvalidTransactionState as refused:
        return refused.actual
