"""Transactions that wait at the same time share a step, and none fails because of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from zope.interface import implementer

from txnframework.broker import Superseded
from txnframework.broker.joint_steps import JointSteps, WaitingTransaction
from txnframework.errors import Closed, OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IDatabaseTransaction, IJointCoordinator
from txnframework.model import AckRequest, Append, Branch, Key, Position, TxnID
from txnframework.model.joint import JointCommit, JointCommitted, JointTransaction
from txnframework.model.steps import LedgerAppend
from txnframework.testing.clock import run_ready

ERRORS = (Unavailable("no"), OutcomeUnknown("lost"), ValueError("a defect"))


@implementer(IJointCoordinator)
class Coordinator:
    """Commits what ``refuses`` does not refuse; each step waits for ``gate``."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.steps: list[tuple[int, ...]] = []
        self.refuses: Callable[[tuple[int, ...]], Exception | None] = lambda _: None
        self.loses_replies = False

    async def commit_jointly(
        self, request: JointCommit, transaction: IDatabaseTransaction | None = None
    ) -> JointCommitted:
        numbers = tuple(one.txn_id.number for one in request.transactions)
        self.steps.append(numbers)
        await self.gate.wait()
        error = self.refuses(numbers)
        if error is not None:
            raise error
        if self.loses_replies:
            return JointCommitted(None, None)
        # The position of an entry shows which transaction and ledger it is of.
        positions = [
            tuple(Position(int(one.data), place) for one in append.entries)
            for place, append in enumerate(request.appends)
        ]
        return JointCommitted(tuple(positions), ())


class ClosedAcks:
    """Acknowledgments of an ended dispatch, as after the loss of its lease."""

    segment, subscription = "s", "billing"

    async def plan_joint(self, requests: tuple[AckRequest, ...]) -> None:
        raise Closed("the pending acknowledgments were closed")


class UnfinishedAcks:
    """Acknowledgments whose plans are created, and fail when they end."""

    def __init__(self, segment: str, ended: list[str]) -> None:
        self.segment, self.subscription = segment, "billing"
        self._ended = ended

    async def plan_joint(self, requests: tuple[AckRequest, ...]) -> Any:
        return self

    async def finish_joint(self, planned: Any, written: Any) -> None:
        self._ended.append(self.segment)
        raise Closed("the dispatch was closed")


def transaction(coordinator: Any, number: int, *ledgers: str, acks: Any = None) -> WaitingTransaction:
    appends = tuple(LedgerAppend(ledger, (Append(b"%d" % number),)) for ledger in ledgers)
    txn_id = TxnID(0, number)
    acking = () if acks is None else ((acks, AckRequest(Branch(txn_id), (), 1)),)
    return WaitingTransaction(coordinator, JointTransaction(txn_id, ""), appends, acking)


async def committed(coordinator: Coordinator, *waiting: WaitingTransaction) -> list[BaseException | None]:
    """Commit the first one, and the others while its step is under way."""
    steps = JointSteps()
    tasks = [asyncio.ensure_future(steps.commit(waiting[0]))]
    await run_ready()
    tasks += [asyncio.ensure_future(steps.commit(one)) for one in waiting[1:]]
    await run_ready()
    coordinator.gate.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_those_that_wait_share_a_step() -> None:
    """Transactions that arrive during a step share the next step, and each gets the positions of its entries."""
    coordinator = Coordinator()
    waiting = [
        transaction(coordinator, 1, "a"),
        transaction(coordinator, 2, "a", "b"),
        transaction(coordinator, 3, "b", "a"),
    ]
    assert await committed(coordinator, *waiting) == [None] * 3
    assert coordinator.steps == [(1,), (2, 3)]
    assert [one.positions for one in waiting] == [
        ((Position(1, 0),),),
        ((Position(2, 0),), (Position(2, 1),)),
        ((Position(3, 1),), (Position(3, 0),)),
    ]


async def test_a_refused_step_is_divided() -> None:
    """If one transaction refuses the step, each is committed by itself, in order, and only that one fails."""
    coordinator = Coordinator()
    coordinator.refuses = lambda numbers: VersionMismatch(Key("/cursor"), 7) if 3 in numbers else None
    waiting = [transaction(coordinator, number, "a") for number in (1, 2, 3, 4)]
    outcomes = await committed(coordinator, *waiting)
    assert [type(one) for one in outcomes] == [type(None), type(None), VersionMismatch, type(None)]
    assert coordinator.steps == [(1,), (2, 3, 4), (2,), (3,), (4,)]
    assert [one.positions is None for one in waiting] == [False, False, True, False]


async def test_a_lease_that_is_lost_before_the_step() -> None:
    """Only the transaction that acknowledges there is refused, and the usual steps follow; the others are committed."""
    coordinator = Coordinator()
    acking = transaction(coordinator, 3, "a", acks=ClosedAcks())
    waiting = [transaction(coordinator, 1, "a"), transaction(coordinator, 2, "a"), acking]
    outcomes = await committed(coordinator, *waiting)
    assert [type(one) for one in outcomes] == [type(None), type(None), Superseded]
    assert coordinator.steps == [(1,), (2,)]


async def test_each_plan_is_ended() -> None:
    """If the end of a plan fails, the others are ended, too, and the outcome is unknown: no usual steps may follow."""
    coordinator, ended = Coordinator(), list[str]()
    coordinator.loses_replies = True
    waiting = [transaction(coordinator, 1)]
    waiting += [
        transaction(coordinator, number, acks=UnfinishedAcks(name, ended)) for number, name in ((2, "s"), (3, "t"))
    ]
    outcomes = await committed(coordinator, *waiting)
    assert [type(one) for one in outcomes] == [type(None), OutcomeUnknown, OutcomeUnknown]
    assert coordinator.steps == [(1,), (2, 3)]
    assert sorted(ended) == ["s", "t"]


@pytest.mark.parametrize("error", ERRORS, ids=[type(one).__name__ for one in ERRORS])
async def test_other_errors_are_of_all(error: Exception) -> None:
    """If the store is unavailable, it is called once for all; an unknown outcome holds for all."""
    coordinator = Coordinator()
    coordinator.refuses = lambda numbers: error if 2 in numbers else None
    waiting = [transaction(coordinator, number, "a") for number in (1, 2, 3)]
    outcomes = await committed(coordinator, *waiting)
    assert [type(one) for one in outcomes] == [type(None), type(error), type(error)]
    assert coordinator.steps == [(1,), (2, 3)]


async def test_a_lost_reply_leaves_no_positions() -> None:
    """If the reply was lost and the header showed the commit, all succeed without positions."""
    coordinator = Coordinator()
    coordinator.loses_replies = True
    waiting = [transaction(coordinator, number, "a") for number in (1, 2, 3)]
    assert await committed(coordinator, *waiting) == [None] * 3
    assert [one.positions for one in waiting] == [None] * 3


async def test_coordinators_share_no_step() -> None:
    """The transactions of a step have the same coordinator."""
    coordinator, other = Coordinator(), Coordinator()
    other.gate = coordinator.gate
    waiting = [transaction(one, number, "a") for number, one in enumerate((coordinator, other, coordinator), 1)]
    assert await committed(coordinator, *waiting) == [None] * 3
    assert (coordinator.steps, other.steps) == ([(1,), (3,)], [(2,)])
