"""KeyedLock: one holder per key, in order of requests; keys without a holder use no memory."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.runtime.concurrency import KeyedLock
from txnframework.testing.clock import run_ready


async def test_one_at_a_time_for_each_thing() -> None:
    """The second request for a key waits for the first; other keys do not wait; nothing is kept at the end."""
    locks: KeyedLock[str] = KeyedLock()
    order: list[str] = []
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def work(key: str, name: str) -> None:
        async with locks.hold(key):
            order.append(f"{name} begins")
            await gates[key].wait()
            order.append(f"{name} ends")

    tasks = [asyncio.ensure_future(work(key, name)) for key, name in zip("aaab", "1234", strict=True)]
    await run_ready()
    assert order == ["1 begins", "4 begins"]
    tasks[1].cancel()  # a cancelled wait takes no other turn
    gates["a"].set()
    await asyncio.gather(tasks[0], tasks[2])
    assert order == ["1 begins", "4 begins", "1 ends", "3 begins", "3 ends"]
    assert len(locks) == 1
    gates["b"].set()
    await tasks[3]
    assert not len(locks)


async def test_a_failure_ends_a_turn() -> None:
    """An error ends the turn: the next one begins, and nothing is left behind."""
    locks: KeyedLock[str] = KeyedLock()
    with pytest.raises(ValueError, match="mine"):
        async with locks.hold("a"):
            raise ValueError("mine")
    assert not len(locks)
    async with locks.hold("a"):
        assert len(locks) == 1
