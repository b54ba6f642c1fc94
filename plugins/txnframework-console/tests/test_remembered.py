"""What costs much to read is read seldom, once at a time, and anew after a change."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import Unavailable
from txnframework.testing import VirtualEnvironment
from txnframework_console.remembered import FRESH_MS, LOAD_MAX, Remembered


class Counter:
    """A reading that takes some time; ``error``: it fails."""

    def __init__(self, environment: VirtualEnvironment, takes_ms: int = 0) -> None:
        self.count = 0
        self.takes_ms = takes_ms
        self.error: Exception | None = None
        self._environment = environment

    async def __call__(self) -> int:
        self.count += 1
        found = self.count
        if self.takes_ms:
            await self._environment.sleep_until(self._environment.now_ms() + self.takes_ms)
        if self.error is not None:
            raise self.error
        return found


@pytest.mark.parametrize(("takes_ms", "fresh_ms"), [(0, FRESH_MS), (1_000, LOAD_MAX * 1_000)])
async def test_it_is_read_again_when_it_is_old(takes_ms: int, fresh_ms: int) -> None:
    """A value that takes long to read is used for longer."""
    environment = VirtualEnvironment()
    read = Counter(environment, takes_ms)
    value = Remembered(read, environment)
    asked = [asyncio.ensure_future(value.get()) for _ in range(3)]
    await environment.advance(takes_ms)
    assert [await one for one in asked] == [1, 1, 1]
    await environment.advance(fresh_ms - 1)
    assert await value.get() == 1
    await environment.advance(1)
    again = asyncio.ensure_future(value.get())
    await environment.advance(takes_ms)
    assert await again == 2


async def test_a_change_during_a_reading() -> None:
    """What a reading found that began before the change is not used afterwards; nor is it after a failure."""
    environment = VirtualEnvironment()
    read = Counter(environment, 10)
    value = Remembered(read, environment)
    before = asyncio.ensure_future(value.get())
    await environment.advance(1)
    value.forget()
    after = asyncio.ensure_future(value.get())
    await environment.advance(10)
    assert (await before, await after, await value.get()) == (1, 2, 2)
    value.forget()
    read.takes_ms, read.error = 0, Unavailable("down")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await value.get()
    assert read.count == 4
