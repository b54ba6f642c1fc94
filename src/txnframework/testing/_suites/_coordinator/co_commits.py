"""Rules of ICoCommitCoordinator."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal

import pytest
from zope.interface import implementer

from txnframework.errors import (
    InvalidInput,
    InvalidTransactionState,
    NotTransactionOwner,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
)
from txnframework.interfaces import ICoCommitCoordinator, ICoCommitStore, IDatabaseTransaction
from txnframework.model import Action, Begin, End, Put, State, Transaction, TxnID
from txnframework.testing._suites._coordinator._case import CoordinatorRules, state_in
from txnframework.testing._suites._coordinator.ends import told
from txnframework.testing._suites._processes import TIMEOUT_MS
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World

Fate = Literal["committed", "reply lost", "request lost", "refused"]


class Refused(Exception):
    """The error of a driver whose database refuses a COMMIT."""


@implementer(IDatabaseTransaction)
class SuiteTransaction:
    """
    A database transaction without rows, whose COMMIT ends as ``fate`` says; ``steps``: what it was asked.

    :param cut: a process that cannot reach its stores after the COMMIT.
    """

    store_waits: str | None = None

    def __init__(self, world: World, fate: Fate = "committed", cut: World | None = None) -> None:
        self.steps: list[str] = []
        self._world = world
        self._cut = cut
        self._fate = fate
        self._written: Put | None = None

    async def put(self, write: Put) -> int:
        """Keep the put for the COMMIT."""
        self.steps.append("put")
        self._written = write
        return 1

    async def commit(self) -> None:
        """Apply the put, unless it is lost or refused."""
        self.steps.append("commit")
        assert self._written is not None, "a COMMIT without a put"
        if self._fate == "refused":
            raise Refused
        if self._fate != "request lost":
            await self._world.store.put(self._written)
        if self._cut is not None:
            self._cut.connection.is_cut = True
        if self._fate != "committed":
            raise OutcomeUnknown("the reply was lost")

    async def rollback(self) -> None:
        """Note the rollback."""
        self.steps.append("rollback")


class CoCommitDecisionRules(CoordinatorRules):
    """A transaction that commits with rows is decided by the COMMIT of the rows, and by nothing else."""

    @requires(ICoCommitCoordinator, ICoCommitStore)
    async def test_commit_with_rows(self) -> None:
        """One put and one COMMIT decide the transaction; every process sees it, and the same plain End succeeds."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await _begin(world)
            request = End(txn, Action.COMMIT, branches=frozenset({0, 7}))
            database = SuiteTransaction(other)
            ended = await _co_commits(world).end_with(request, database)
            assert (ended.state, ended.branches) == (State.COMMITTED, request.branches)
            assert database.steps == ["put", "commit"]
            assert await other.coordinator.end(request) == ended
            with pytest.raises(InvalidTransactionState):
                await other.coordinator.end(End(txn, Action.ABORT))

    @requires(ICoCommitCoordinator, ICoCommitStore)
    async def test_no_other_commit(self) -> None:
        """A plain End that commits is refused for every caller, because the rows would be missing; an abort is not."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await _begin(world)
            for process in (world, other):
                for operator in (False, True):
                    with pytest.raises(TransactionConflict):
                        await process.coordinator.end(End(txn, Action.COMMIT, operator=operator))
                assert await state_in(process, txn) is State.OPEN
            await other.coordinator.end(End(txn, Action.ABORT))
            database = SuiteTransaction(world)
            with pytest.raises(InvalidTransactionState) as caught:
                await _co_commits(other).end_with(End(txn, Action.COMMIT), database)
            assert caught.value.actual is State.ABORTED
            assert "commit" not in database.steps

    @requires(ICoCommitCoordinator, ICoCommitStore)
    async def test_lost_reply_to_the_commit_of_rows(self) -> None:
        """The outcome is found out; the COMMIT is sent once, and the connection is rolled back before the abort."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await _begin(world)
            database = SuiteTransaction(other, "reply lost")
            ended = await _co_commits(world).end_with(End(txn, Action.COMMIT), database)
            assert ended.state is await state_in(other, txn) is State.COMMITTED
            assert database.steps == ["put", "commit", "rollback"]
            txn = await _begin(world)
            database = SuiteTransaction(other, "request lost")
            with pytest.raises(InvalidTransactionState) as caught:
                await _co_commits(world).end_with(End(txn, Action.COMMIT), database)
            assert caught.value.actual is await state_in(other, txn) is State.ABORTED
            assert database.steps == ["put", "commit", "rollback"]

    @requires(ICoCommitCoordinator, ICoCommitStore)
    async def test_lost_reply_and_no_store(self) -> None:
        """If the store cannot be reached either, the outcome is unknown; an abort resolves it later."""
        async with self.data.open() as world, self.data.open() as other:
            for fate, state in (("reply lost", State.COMMITTED), ("request lost", State.ABORTED)):
                txn = await _begin(world)
                database = SuiteTransaction(other, fate, cut=world)  # type: ignore[arg-type]
                with pytest.raises(OutcomeUnknown):
                    await _co_commits(world).end_with(End(txn, Action.COMMIT), database)
                world.connection.restore()
                await told(world.coordinator.end(End(txn, Action.ABORT)))
                assert await state_in(other, txn) is state

    @requires(ICoCommitCoordinator, ICoCommitStore)
    async def test_refused_commit_of_rows(self) -> None:
        """The error of the driver is raised as it is, and the transaction is still open."""
        async with self.data.open() as world, self.data.open() as other:
            txn = await _begin(world)
            with pytest.raises(Refused):
                await _co_commits(world).end_with(End(txn, Action.COMMIT), SuiteTransaction(other, "refused"))
            assert await state_in(other, txn) is State.OPEN
            await other.coordinator.end(End(txn, Action.ABORT))

    @requires(ICoCommitCoordinator, ICoCommitStore)
    async def test_who_may_not_commit_with_rows(self) -> None:
        """Another principal, a transaction that was not begun for it, and an unknown one are refused before the put."""
        async with self.data.open() as world, self.data.open() as other:
            owned = await _begin(world, "ada")
            plain = (await world.coordinator.begin(Begin(TIMEOUT_MS))).txn_id
            unknown = TxnID(owned.coordinator, owned.number + 10**6)
            cases: tuple[tuple[TxnID, type[Exception]], ...] = (
                (owned, NotTransactionOwner),
                (plain, TransactionConflict),
                (unknown, TransactionNotFound),
            )
            for txn, error in cases:
                for process in (world, other):
                    database = SuiteTransaction(other)
                    with pytest.raises(error):
                        await _co_commits(process).end_with(End(txn, Action.COMMIT, "eve"), database)
                    assert database.steps == []
            for txn, error in cases[1:]:
                with pytest.raises(error):
                    await _co_commits(other).join_transaction(txn, object())
            with pytest.raises(InvalidInput):
                await _co_commits(world).join_transaction(owned, object())
            ended = await _co_commits(other).end_with(End(owned, Action.COMMIT, "ada"), SuiteTransaction(other))
            assert ended.state is State.COMMITTED

    async def test_coordinators_that_cannot_commit_with_rows(self) -> None:
        """Without a store or a coordinator that can do it, the beginning is refused."""
        async with self.data.open() as world:
            begin: Callable[[Begin], Coroutine[Any, Any, Transaction]] = world.coordinator.begin
            request = Begin(TIMEOUT_MS, co_commit=True)
            if ICoCommitCoordinator.providedBy(world.coordinator) and ICoCommitStore.providedBy(world.store):
                assert (await begin(request)).co_commit
                return
            with pytest.raises(InvalidInput):
                await begin(request)


async def _begin(world: World, principal: str = "") -> TxnID:
    """Begin a transaction that commits with rows."""
    return (await world.coordinator.begin(Begin(TIMEOUT_MS, principal, co_commit=True))).txn_id


def _co_commits(world: World) -> ICoCommitCoordinator:
    """Return the coordinator as one that commits with rows."""
    assert ICoCommitCoordinator.providedBy(world.coordinator)
    return world.coordinator
