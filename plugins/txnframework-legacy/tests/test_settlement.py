"""Outcomes that take effect together: one change of the cursor for all waiting calls, and none is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
from test_log import opened

from txnframework.errors import Unavailable
from txnframework.interfaces import ICursor
from txnframework.model import Ack, Participant, Position, ProcessedRange, State, Transaction, TxnID
from txnframework.testing.clock import run_ready
from txnframework_legacy.log import Batching
from txnframework_legacy.pending_acks.log import PendingAckLog
from txnframework_legacy.pending_acks.records import AckDocument, Acked
from txnframework_legacy.pending_acks.settlement import AckSettlement

HERE = Participant("persistent://a/b/orders", "billing")


@dataclass(eq=False)
class SlowCursor:
    """A cursor that a test lets go on; what it was asked to apply, entry by entry."""

    applied: list[list[int]] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: ProcessedRange | None) -> bool:
        assert (incarnation, processed) == (1, None)
        self.applied.append([ack.position.entry_id for ack in acks])
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        return True


@dataclass(eq=False)
class Stand:
    """A log in which transactions 1, 2, ... hold the entries of the same numbers, and who settles them."""

    log: PendingAckLog
    cursor: SlowCursor
    settling: AckSettlement

    async def begin(self, *numbers: int, state: State = State.COMMITTED) -> list[asyncio.Task[bool]]:
        tasks = [asyncio.ensure_future(self.settle(number, state)) for number in numbers]
        await run_ready()
        return tasks

    async def settle(self, number: int, state: State) -> bool:
        txn = TxnID(0x8000, number)
        ended = Transaction(txn, state, 0, 0, participants=frozenset({HERE}), branches=frozenset({0}))
        return await self.settling.settle(self.log, txn, ended)

    def held(self) -> list[int]:
        return [txn.number for txn in self.log.held.transactions()]


def at_a_stand(test: Callable[[Stand], Awaitable[None]]) -> Callable[[], None]:
    """Run a test where transactions 1 to 9 hold something."""

    async def with_stand() -> None:
        async with opened(Batching()) as log, asyncio.timeout(60):
            pending, cursor = PendingAckLog(log.ledger, log.writer), SlowCursor()
            for number in range(1, 10):
                document = AckDocument(position=str(Position(0, number)))
                txn = str(TxnID(0x8000, number))
                await pending.append(Acked(txn=txn, branch=0, token=number, incarnation=1, acks=[document]))
            await test(Stand(pending, cursor, AckSettlement(HERE, cast(ICursor, cursor), 4)))

    def run() -> None:
        asyncio.run(with_stand())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@at_a_stand
async def test_those_that_wait_are_settled_together(stand: Stand) -> None:
    """Outcomes that arrive meanwhile are applied together, up to a limit; aborted ones are not applied."""
    tasks = [*await stand.begin(1), *await stand.begin(2, 3), *await stand.begin(4, state=State.ABORTED)]
    tasks += await stand.begin(5, 6)
    stand.cursor.goes_on.set()
    await asyncio.gather(*tasks)
    assert stand.cursor.applied == [[1], [2, 3, 5], [6]]
    assert stand.held() == [7, 8, 9]


@at_a_stand
async def test_one_call_tells_that_it_did_the_work(stand: Stand) -> None:
    """Of the calls settled together, one reports that it did the work, so that follow-up work is done once."""
    first = await stand.begin(1)
    others = await stand.begin(2, 3, 4)
    stand.cursor.goes_on.set()
    assert [await task for task in first] == [True]
    assert sorted([await task for task in others]) == [False, False, True]


@at_a_stand
async def test_who_gives_up_leaves_the_others_to_the_next(stand: Stand) -> None:
    """If a call is cancelled while it applies all outcomes, all of them are settled, including its own."""
    await stand.begin(1)
    others = await stand.begin(2, 3, 4)
    stand.cursor.goes_on.set()
    await run_ready(3)
    stand.cursor.goes_on.clear()
    others[0].cancel()
    await run_ready()
    stand.cursor.goes_on.set()
    results = await asyncio.gather(*others, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in results] == [True, False, False]
    assert not {2, 3, 4} & set(stand.held())


@at_a_stand
async def test_a_failure_is_told_to_all_it_concerns(stand: Stand) -> None:
    """If applying fails, each of its calls gets the error, and the outcomes can be settled again."""
    stand.cursor.error = Unavailable("the test says so")
    tasks = [*await stand.begin(1), *await stand.begin(2, 3)]
    stand.cursor.goes_on.set()
    for task in tasks:
        with pytest.raises(Unavailable):
            await task
    assert stand.held() == list(range(1, 10))
    stand.cursor.error = None
    await asyncio.gather(*await stand.begin(1, 2, 3))
    assert stand.held() == list(range(4, 10))
