"""for_each: bounded, in order, and complete before it raises."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.runtime.concurrency import for_each
from txnframework.testing.clock import run_ready


class Work:
    """Work on numbers that ends when the test lets it; those in ``failing`` then fail."""

    def __init__(self, failing: tuple[int, ...] = ()) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.gates = {number: asyncio.Event() for number in range(10)}
        self._failing = failing

    async def __call__(self, number: int) -> None:
        self.begun.append(number)
        try:
            await self.gates[number].wait()
            if number in self._failing:
                raise ValueError(number)
        finally:
            self.ended.append(number)


async def test_at_most_so_many_at_a_time() -> None:
    """Items begin in their order, and the next one begins when one ends."""
    work = Work()
    running = asyncio.ensure_future(for_each(range(5), work, 2))
    await run_ready()
    assert work.begun == [0, 1]
    work.gates[1].set()
    await run_ready()
    assert work.begun == [0, 1, 2]
    for gate in work.gates.values():
        gate.set()
    await running
    assert work.begun == [0, 1, 2, 3, 4]
    await for_each((), work, 2)
    await for_each((7,), work, 2)
    assert work.begun[5:] == [7]


@pytest.mark.parametrize("despite_errors", [False, True])
async def test_the_first_error(despite_errors: bool) -> None:
    """After an error the running ones end, and others begin only if that is wanted; the first in order is raised."""
    work = Work(failing=(1, 2))
    running = asyncio.ensure_future(for_each(range(5), work, 3, despite_errors=despite_errors))
    await run_ready()
    work.gates[2].set()
    await run_ready()
    assert work.begun == ([0, 1, 2, 3] if despite_errors else [0, 1, 2])
    assert not running.done()
    for gate in work.gates.values():
        gate.set()
    with pytest.raises(ValueError, match="1"):
        await running
    assert sorted(work.ended) == ([0, 1, 2, 3, 4] if despite_errors else [0, 1, 2])


async def test_a_cancelled_caller() -> None:
    """It cancels what runs, and returns after that has ended; nothing else begins."""
    work = Work()
    running = asyncio.ensure_future(for_each(range(5), work, 2))
    await run_ready()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (work.begun, sorted(work.ended)) == ([0, 1], [0, 1])
