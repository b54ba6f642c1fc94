"""Requests of one turn that are more than one group: several groups are performed at the same time."""

from __future__ import annotations

import asyncio

from txnframework.errors import Closed, OutcomeUnknown
from txnframework.runtime.call_groups import Answers, CallGroups, GroupRules
from txnframework.testing.clock import run_ready

RULES: GroupRules[int] = GroupRules(lambda *_: True, lambda _: 1, 3, "a number", groups_max=2)


class Recorder:
    """Records each group, and answers it when it is let."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.cancelled: list[list[int]] = []
        self.go = asyncio.Event()

    async def record(self, requests: list[int]) -> Answers:
        self.groups.append(requests)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(requests)
            raise
        return [None] * len(requests)


async def started(groups: CallGroups[int], numbers: range) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(groups.add(number)) for number in numbers]
    await run_ready()
    return tasks


async def test_full_groups_at_the_same_time() -> None:
    """Two groups begin together; what is left, and what arrives meanwhile, waits for them."""
    recorder = Recorder()
    groups = CallGroups(recorder.record, RULES)
    tasks = await started(groups, range(7))
    tasks += await started(groups, range(7, 9))
    assert recorder.groups == [[0, 1, 2], [3, 4, 5]]
    recorder.go.set()
    await asyncio.gather(*tasks)
    assert recorder.groups[2:] == [[6, 7, 8]]


async def test_cancelled_callers_end_their_group_only() -> None:
    """A group is cancelled with its last caller, and the other group continues."""
    recorder = Recorder()
    groups = CallGroups(recorder.record, RULES)
    tasks = await started(groups, range(6))
    for task in tasks[2:]:
        task.cancel()
    await run_ready()
    assert recorder.cancelled == [[3, 4, 5]]
    recorder.go.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[:2] == [None, None]
    assert {type(answer) for answer in answers[2:]} == {asyncio.CancelledError}


async def test_closed_with_two_groups_under_way() -> None:
    """Requests of both groups may have been performed; a waiting request was not."""
    recorder = Recorder()
    groups = CallGroups(recorder.record, RULES)
    tasks = await started(groups, range(7))
    await groups.close()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [OutcomeUnknown] * 6 + [Closed]
