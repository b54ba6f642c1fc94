"""Acknowledgments are gathered into groups: which ones share a write, and what callers learn when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from txnframework.errors import Closed, OutcomeUnknown, Unavailable
from txnframework.model import Ack, AckRequest, Branch, Position, ProcessedRange, TxnID
from txnframework.runtime.call_groups import Answers, CallGroups
from txnframework.runtime.tasks import start_task
from txnframework.testing.clock import run_ready
from txnframework_metadata.pending_acks.groups import ack_group_rules

PROCESSED = ProcessedRange("query", 1, Position(1, 0), Position(1, 1), 1)


def request(first: int, acks: int = 1, branch: int = 0, processed: ProcessedRange | None = None) -> AckRequest:
    many = tuple(Ack(Position(1, first + at)) for at in range(acks))
    return AckRequest(Branch(TxnID(0, 1), branch), many, 1, processed)


class Recorder:
    """Records a group when the test allows it."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.go = asyncio.Event()
        self.answer: Callable[[list[AckRequest]], Answers] = lambda some: [None] * len(some)

    async def record(self, requests: list[AckRequest]) -> Answers:
        self.groups.append([one.acks[0].position.entry_id for one in requests])
        await self.go.wait()
        return self.answer(requests)


async def started(groups: CallGroups[AckRequest], *requests: AckRequest) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(groups.add(one)) for one in requests]
    await run_ready()
    return tasks


async def test_what_waits_of_one_branch_goes_together_up_to_the_bound() -> None:
    """Calls of other branches keep their turn; the ack of a batch's input is written alone."""
    recorder = Recorder()
    groups = CallGroups(recorder.record, ack_group_rules(3))
    tasks = await started(groups, request(0))
    tasks += await started(
        groups,
        request(1),
        request(2, branch=5),
        request(3, 2),
        request(5),
        request(6, branch=5),
        request(7, 9),
        request(16, processed=PROCESSED),
        request(17),
    )
    recorder.go.set()
    await asyncio.gather(*tasks)
    assert recorder.groups == [[0], [1, 3], [2, 6], [5], [7], [16], [17]]


async def test_everybody_of_a_group_hears_why_it_failed_and_the_next_one_works() -> None:
    """All callers get the error of the group, also an error of another library."""
    recorder = Recorder()
    groups = CallGroups(recorder.record, ack_group_rules(10))
    recorder.go.set()

    def fail(requests: list[AckRequest]) -> Answers:
        recorder.answer = lambda some: [None] * len(some)
        raise Unavailable("not now")

    recorder.answer = fail
    told = await asyncio.gather(*(groups.add(request(at)) for at in range(3)), return_exceptions=True)
    assert [type(one) for one in told] == [Unavailable] * 3
    await groups.add(request(4))


async def test_a_group_goes_on_while_one_of_its_callers_waits() -> None:
    """A group whose callers were all cancelled is stopped; a call cancelled before its turn is not recorded."""
    recorder = Recorder()
    groups = CallGroups(recorder.record, ack_group_rules(10))
    one, two = await started(groups, request(0), request(1))
    (late,) = await started(groups, request(2))
    for task in (one, late):
        task.cancel()
    await run_ready()
    assert late.cancelled()
    recorder.go.set()
    await two
    recorder.go.clear()
    one, two = await started(groups, request(3), request(4))
    for task in (one, two):
        task.cancel()
    await run_ready()
    assert [one.cancelled(), two.cancelled()] == [True, True]
    recorder.go.set()
    await groups.add(request(5))
    assert recorder.groups == [[0, 1], [3, 4], [5]]


async def test_one_that_is_cancelled_before_its_turn_is_not_recorded() -> None:
    """This holds even if the group begins in the same turn of the loop."""
    recorder = Recorder()
    recorder.go.set()
    groups = CallGroups(recorder.record, ack_group_rules(10))
    one = start_task(groups.add(request(0)))
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.wait([one])
    assert recorder.groups == []
    await groups.add(request(1))
    assert recorder.groups == [[1]]


async def test_one_that_waits_does_not_stop_another_group() -> None:
    """A group whose callers were cancelled cleans up, and is cancelled only once."""
    cleaned, clean = asyncio.Event(), asyncio.Event()

    async def record(requests: list[AckRequest]) -> Answers:
        try:
            await asyncio.Event().wait()
        finally:
            await clean.wait()
            cleaned.set()
        return [None] * len(requests)

    groups = CallGroups(record, ack_group_rules(10))
    (one,) = await started(groups, request(0))
    (waiting,) = await started(groups, request(1))
    one.cancel()
    await run_ready()
    waiting.cancel()
    await run_ready()
    assert waiting.cancelled()
    assert not one.done()
    clean.set()
    await asyncio.wait([one])
    assert cleaned.is_set()


async def test_closing_tells_everybody() -> None:
    """Closing fails the running group with an unknown outcome, and the waiting calls as not recorded."""
    recorder = Recorder()
    groups = CallGroups(recorder.record, ack_group_rules(10))
    (running,) = await started(groups, request(0))
    (waiting,) = await started(groups, request(1))
    await groups.close()
    with pytest.raises(OutcomeUnknown):
        await running
    with pytest.raises(Closed):
        await waiting
    assert recorder.groups == [[0]]
