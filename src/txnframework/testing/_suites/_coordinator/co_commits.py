"""Rules of IJointCoordinator: transactions that commit with rows of an application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from txnframework.errors import (
    InvalidInput,
    InvalidTransactionState,
    NotTransactionOwner,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
)
from txnframework.interfaces import ICoCommitStore, IJointCoordinator
from txnframework.model import Action, Begin, End, State, TxnID
from txnframework.testing._suites._coordinator._case import CoordinatorRules, state_in
from txnframework.testing._suites._coordinator._rows_case import (
    Fate,
    Refused,
    StepsOfRows,
    SuiteRows,
    coordinator_over,
)
from txnframework.testing._suites._coordinator.ends import told
from txnframework.testing._suites._processes import TIMEOUT_MS
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World


class CoCommitDecisionRules(CoordinatorRules):
    """A transaction that commits with rows is decided by the COMMIT of the rows, and by nothing else."""

    @requires(IJointCoordinator)
    async def test_commit_with_rows(self) -> None:
        """One step and one COMMIT decide the transaction; every process sees it, and the same plain End succeeds."""
        async with self._opened() as (_, joint), self.data.open() as other:
            txn, rows = await _begin(joint), SuiteRows()
            request = End(txn, Action.COMMIT, branches=frozenset({0, 7}))
            ended = await joint.end_with(request, rows)
            assert (ended.state, ended.branches) == (State.COMMITTED, request.branches)
            assert rows.steps == ["step", "commit"]
            assert await other.coordinator.end(request) == ended
            with pytest.raises(InvalidTransactionState):
                await other.coordinator.end(End(txn, Action.ABORT))

    @requires(IJointCoordinator)
    async def test_no_other_commit(self) -> None:
        """A plain End that commits is refused for every caller, because the rows would be missing; an abort is not."""
        async with self._opened() as (world, joint), self._opened() as (other, late):
            txn, rows = await _begin(joint), SuiteRows()
            for coordinator in (joint, other.coordinator):
                for operator in (False, True):
                    with pytest.raises(TransactionConflict):
                        await coordinator.end(End(txn, Action.COMMIT, operator=operator))
                assert await state_in(world, txn) is State.OPEN
            await other.coordinator.end(End(txn, Action.ABORT))
            with pytest.raises(InvalidTransactionState) as caught:
                await late.end_with(End(txn, Action.COMMIT), rows)
            assert caught.value.actual is State.ABORTED
            assert "commit" not in rows.steps

    @requires(IJointCoordinator)
    async def test_lost_reply_to_the_commit_of_rows(self) -> None:
        """The outcome is found out; the COMMIT is sent once, and the connection is rolled back before the abort."""
        async with self._opened() as (_, joint), self.data.open() as other:
            txn, rows = await _begin(joint), SuiteRows("reply lost")
            ended = await joint.end_with(End(txn, Action.COMMIT), rows)
            assert ended.state is await state_in(other, txn) is State.COMMITTED
            assert rows.steps == ["step", "commit", "rollback"]
            txn, rows = await _begin(joint), SuiteRows("request lost")
            with pytest.raises(InvalidTransactionState) as caught:
                await joint.end_with(End(txn, Action.COMMIT), rows)
            assert caught.value.actual is await state_in(other, txn) is State.ABORTED
            assert rows.steps == ["step", "commit", "rollback"]

    @requires(IJointCoordinator)
    async def test_lost_reply_and_no_store(self) -> None:
        """If the store cannot be reached either, the outcome is unknown; an abort resolves it later."""
        fates: tuple[tuple[Fate, State], ...] = (("reply lost", State.COMMITTED), ("request lost", State.ABORTED))
        async with self._opened() as (world, joint), self.data.open() as other:
            for fate, state in fates:
                txn = await _begin(joint)
                with pytest.raises(OutcomeUnknown):
                    await joint.end_with(End(txn, Action.COMMIT), SuiteRows(fate, world))
                world.connection.restore()
                await told(joint.end(End(txn, Action.ABORT)))
                assert await state_in(other, txn) is state

    @requires(IJointCoordinator)
    async def test_refused_commit_of_rows(self) -> None:
        """The error of the driver is raised as it is, and the transaction is still open."""
        async with self._opened() as (_, joint), self.data.open() as other:
            txn = await _begin(joint)
            with pytest.raises(Refused):
                await joint.end_with(End(txn, Action.COMMIT), SuiteRows("refused"))
            assert await state_in(other, txn) is State.OPEN
            await other.coordinator.end(End(txn, Action.ABORT))

    @requires(IJointCoordinator)
    async def test_who_may_not_commit_with_rows(self) -> None:
        """Another principal, a transaction that was not begun for it, and an unknown one: no step is made."""
        async with self._opened() as (_, joint), self._opened() as (_, other):
            owned = await _begin(joint, "ada")
            plain = (await joint.begin(Begin(TIMEOUT_MS))).txn_id
            unknown = TxnID(owned.coordinator, owned.number + 10**6)
            cases: tuple[tuple[TxnID, type[Exception]], ...] = (
                (owned, NotTransactionOwner),
                (plain, TransactionConflict),
                (unknown, TransactionNotFound),
            )
            for txn, error in cases:
                for coordinator in (joint, other):
                    rows = SuiteRows()
                    with pytest.raises(error):
                        await coordinator.end_with(End(txn, Action.COMMIT, "eve"), rows)
                    assert rows.steps == []
            ended = await other.end_with(End(owned, Action.COMMIT, "ada"), SuiteRows())
            assert ended.state is State.COMMITTED

    async def test_coordinators_that_cannot_commit_with_rows(self) -> None:
        """Without a store or a coordinator that can do it, the beginning is refused; an unknown object always is."""
        async with self.data.open() as world:
            coordinator, request = world.coordinator, Begin(TIMEOUT_MS, co_commit=True)
            if not IJointCoordinator.providedBy(coordinator) or not ICoCommitStore.providedBy(world.store):
                with pytest.raises(InvalidInput):
                    await coordinator.begin(request)
                return
            assert (await coordinator.begin(request)).co_commit
            with pytest.raises(InvalidInput):
                await coordinator.join(object())

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[World, IJointCoordinator]]:
        """Open a process, and another coordinator of it whose steps with rows are left to their COMMIT."""
        async with (
            self.data.open() as world,
            coordinator_over(self.data, world, StepsOfRows(world.store)) as joint,
        ):
            yield world, joint


async def _begin(joint: IJointCoordinator, principal: str = "") -> TxnID:
    """Begin a transaction that commits with rows."""
    return (await joint.begin(Begin(TIMEOUT_MS, principal, co_commit=True))).txn_id
