"""What is asked for at the same time goes together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from txnframework.errors import TxnFrameworkError
from txnframework_sql.postgresql._together import Together


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
def test_groups(calls: int, share_min: int | None, sizes: list[int]) -> None:
    """Few calls are one group; many are as many as may be under way, of equal size and at once, as far as one holds."""

    async def test() -> None:
        under_way: list[int] = []
        go_on = asyncio.Event()

        async def perform(group: Sequence[int]) -> list[int | TxnFrameworkError]:
            under_way.append(len(group))
            await go_on.wait()
            return list(group)

        together = Together(perform, queue_max=100, group_max=30, under_way_max=2, share_min=share_min)
        asked = [asyncio.create_task(together.ask(number)) for number in range(calls)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert under_way == sizes
        go_on.set()
        assert await asyncio.gather(*asked) == list(range(calls))
        assert sum(under_way) == calls
        await together.close()

    asyncio.run(test())
