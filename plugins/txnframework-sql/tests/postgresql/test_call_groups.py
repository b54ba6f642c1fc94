"""Simultaneous calls are performed together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from txnframework.errors import Closed, TxnFrameworkError
from txnframework_sql.postgresql._call_groups import CallGroups, LockWaits
from txnframework_sql.postgresql._errors import Locked


@pytest.mark.parametrize(
    ("calls", "share_min", "sizes"),
    [
        (1, 4, [1]),
        (6, 4, [6]),
        (7, 4, [4, 3]),
        (9, 4, [5, 4]),
        (29, None, [29]),
        (40, None, [30, 10]),
        (100, 4, [30, 30]),
    ],
)
async def test_groups(calls: int, share_min: int | None, sizes: list[int]) -> None:
    """Few calls form one group; many form as many groups as may run at once, of equal size up to the limit."""
    under_way: list[int] = []
    go_on = asyncio.Event()

    async def perform(group: Sequence[int]) -> list[int | TxnFrameworkError]:
        under_way.append(len(group))
        await go_on.wait()
        return list(group)

    together = CallGroups(perform, queue_max=100, group_max=30, under_way_max=2, share_min=share_min)
    asked = [asyncio.create_task(together.submit(number)) for number in range(calls)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert under_way == sizes
    go_on.set()
    assert await asyncio.gather(*asked) == list(range(calls))
    assert sum(under_way) == calls
    await together.close()


class Groups:
    """Performs calls when told to, and records which task performed which group."""

    def __init__(self) -> None:
        self.performed: list[tuple[asyncio.Task[int] | None, tuple[int, ...]]] = []
        self.go_on = asyncio.Event()

    @property
    def sizes(self) -> list[int]:
        return [len(group) for _, group in self.performed]

    async def perform(self, group: Sequence[int]) -> list[int | TxnFrameworkError]:
        self.performed.append((asyncio.current_task(), tuple(group)))
        await self.go_on.wait()
        return list(group)

    async def asked(self, together: CallGroups[int, int], *numbers: int) -> list[asyncio.Task[int]]:
        """Submit calls, and return when as many as possible are running."""
        tasks = [asyncio.create_task(together.submit(number)) for number in numbers]
        for _ in range(5):
            await asyncio.sleep(0)
        return tasks

    async def used_alone(self, together: CallGroups[int, int]) -> None:
        """Submit two calls one after the other, and forget their groups."""
        self.go_on.set()
        assert [await together.submit(number) for number in range(2)] == [0, 1]
        self.go_on.clear()
        self.performed.clear()


def alone(groups: Groups, under_way_max: int) -> CallGroups[int, int]:
    return CallGroups(groups.perform, queue_max=100, group_max=30, under_way_max=under_way_max, may_be_alone=True)


async def test_balanced_groups() -> None:
    """
    Callers that come back in some turns form one group, and few calls wait for a running group of many.

    As soon as half as many wait, they form a group beside it.
    """
    groups = Groups()
    together = CallGroups(groups.perform, queue_max=100, group_max=30, under_way_max=2, is_balanced=True)

    async def late(number: int) -> int:
        for _ in range(2 * number):
            await asyncio.sleep(0)
        return await together.submit(number)

    asked = [asyncio.create_task(late(number)) for number in range(10)]
    for _ in range(40):
        await asyncio.sleep(0)
    assert groups.sizes == [10]
    few = [asyncio.create_task(together.submit(number)) for number in range(4)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert groups.sizes == [10]
    one_more = asyncio.create_task(together.submit(4))
    for _ in range(20):
        await asyncio.sleep(0)
    assert groups.sizes == [10, 5]
    groups.go_on.set()
    assert await asyncio.gather(*asked, *few, one_more) == [*range(10), *range(5)]
    await together.close()


async def test_who_is_alone_waits_for_nobody() -> None:
    """If no other call was made since the last one, the next call runs at once in its caller's task."""
    groups = Groups()
    together = alone(groups, 2)
    await groups.used_alone(together)
    (first,) = await groups.asked(together, 1)
    assert groups.performed == [(first, (1,))]
    others = await groups.asked(together, 2, 3)
    groups.go_on.set()
    assert await asyncio.gather(first, *others) == [1, 2, 3]
    # They have met: those that come now are looked for again.
    await asyncio.gather(*await groups.asked(together, 4, 5))
    assert groups.sizes == [1, 2, 2]


async def test_a_lone_call_leaves_nobody_behind() -> None:
    """However a single call ends, the calls that arrived meanwhile are performed."""
    groups = Groups()
    together = alone(groups, 1)
    await groups.used_alone(together)
    (first,) = await groups.asked(together, 1)
    others = await groups.asked(together, 2, 3)
    assert groups.sizes == [1]
    first.cancel()
    groups.go_on.set()
    assert await asyncio.gather(*others) == [2, 3]
    assert first.cancelled()


async def test_closing_waits_for_a_lone_call() -> None:
    """Closing waits for earlier calls and refuses later ones."""
    groups = Groups()
    together = alone(groups, 2)
    await groups.used_alone(together)
    (asked,) = await groups.asked(together, 1)
    closing = asyncio.create_task(together.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    groups.go_on.set()
    await closing
    assert await asked == 1
    with pytest.raises(Closed):
        await together.submit(2)


@pytest.mark.parametrize("together_first", [True, False])
@pytest.mark.parametrize("may_be_alone", [True, False])
async def test_calls_that_wait_for_a_lock(*, together_first: bool, may_be_alone: bool) -> None:
    """Others are answered without the locked ones, in a group or behind them, and closing waits for the locked ones."""
    unlocked = asyncio.Event()

    async def perform(group: Sequence[str]) -> list[str | Exception]:
        if "locked" in group:
            raise Locked("after a short wait")
        return list(group)

    async def wait(group: Sequence[str]) -> list[str | Exception]:
        await unlocked.wait()
        return list(group)

    together = CallGroups(
        perform,
        lock=LockWaits(perform, wait),
        queue_max=100,
        group_max=30,
        under_way_max=2,
        may_be_alone=may_be_alone,
    )
    assert [await together.submit("first") for _ in range(2)] == ["first"] * 2
    names = [*["locked"] * 5, "a", "b"]
    asked = []
    for name in names:
        asked.append(asyncio.create_task(together.submit(name)))
        for _ in range(0 if together_first else 20):
            await asyncio.sleep(0)
    assert await asyncio.gather(*asked[5:]) == ["a", "b"]
    assert await together.submit("c") == "c"
    closing = asyncio.create_task(together.close())
    await asyncio.sleep(0)
    assert not any(one.done() for one in (*asked[:5], closing))
    unlocked.set()
    assert await asyncio.gather(*asked) == names
    await closing
