"""ResultGroups: calls that come during a turn share the next one, each with its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from txnframework.errors import Unavailable
from txnframework.runtime.call_groups import GroupRules, ResultGroups
from txnframework.testing import run_ready


class World:
    """What is performed, when the test lets it; odd numbers are refused, and a group with 8 fails."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.unwanted: list[int] = []
        self.gate = asyncio.Event()
        rules: GroupRules[int] = GroupRules(
            joins=lambda *_: True, size=lambda _: 1, size_max=3, what="a call", is_cancelled=False
        )
        self.turns = ResultGroups(self._perform, rules, self.unwanted.append)

    async def _perform(self, calls: Sequence[int]) -> list[int | Exception]:
        self.groups.append([*calls])
        await self.gate.wait()
        if 8 in calls:
            raise Unavailable("down")
        return [Unavailable(f"refused {call}") if call % 2 else call for call in calls]


async def test_calls_share_turns() -> None:
    """A group has at most so many calls, in their order; a refused call fails no other."""
    world = World()
    calls = [asyncio.ensure_future(world.turns.add(number)) for number in range(5)]
    await run_ready()
    assert world.groups == [[0, 1, 2]]
    world.gate.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert world.groups == [[0, 1, 2], [3, 4]]
    assert [str(one) if isinstance(one, Exception) else one for one in answers] == [
        0,
        "refused 1",
        2,
        "refused 3",
        4,
    ]
    assert await world.turns.add(6) == 6


async def test_cancelled_callers() -> None:
    """A call is not performed if its caller is cancelled before; a result that no caller gets is reported."""
    world = World()
    calls = [asyncio.ensure_future(world.turns.add(number)) for number in (0, 2, 4, 6)]
    await run_ready()
    calls[1].cancel()
    calls[3].cancel()
    world.gate.set()
    await run_ready()
    assert world.groups == [[0, 2, 4]]
    assert (world.unwanted, await calls[0], await calls[2]) == ([2], 0, 4)
    late = asyncio.ensure_future(world.turns.add(10))
    for _ in range(10):
        if world.groups[-1] == [10]:
            break
        await asyncio.sleep(0)
    late.cancel()  # after its answer, and before it continues
    await asyncio.gather(late, return_exceptions=True)
    assert world.unwanted == [2, 10]


async def test_an_error_for_all() -> None:
    """Each caller of a group that failed gets an error of its own, and the next group is performed."""
    world = World()
    world.gate.set()
    calls = [asyncio.ensure_future(world.turns.add(number)) for number in (6, 8, 10, 12)]
    first, second, third, last = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(one, Unavailable) for one in (first, second, third))
    assert len({id(first), id(second), id(third)}) == 3
    assert last == 12
