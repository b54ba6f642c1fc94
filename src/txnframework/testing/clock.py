"""An environment whose clock moves only when a test advances it."""

from __future__ import annotations

import asyncio
import random
from bisect import insort
from itertools import count

START_MS = 1_700_000_000_000
"""The start of virtual time: a realistic date, so that printed times are recognizable."""

STEPS_BETWEEN = 50
"""The number of event loop steps in which ready tasks run before the clock moves."""


class VirtualEnvironment:
    """An ``Environment`` with a clock that the test controls and seeded random numbers."""

    def __init__(self, seed: int = 0, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        """Return the virtual time in milliseconds since 1970."""
        return self._now_ms

    async def sleep_until(self, at_ms: int) -> None:
        """Wait until ``advance`` reaches ``at_ms``; if that time has passed, wait for one step of the event loop."""
        if at_ms <= self._now_ms:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = (at_ms, next(self._order), woken)
        insort(self._sleepers, sleeper, key=lambda one: one[:2])
        try:
            await woken
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def random_bits(self, count: int) -> int:
        """Return ``count`` bits from the seeded generator."""
        return self._random.getrandbits(count)

    def next_ms(self) -> int | None:
        """Return the time at which the next sleeper wakes; None if nothing sleeps."""
        return self._sleepers[0][0] if self._sleepers else None

    def move_to(self, at_ms: int) -> None:
        """Move the clock to ``at_ms`` unless it is later already, and wake all sleepers that are due."""
        self._now_ms = max(self._now_ms, at_ms)
        while self._sleepers and self._sleepers[0][0] <= self._now_ms:
            _, _, woken = self._sleepers.pop(0)
            if not woken.done():
                woken.set_result(None)

    async def advance(self, by_ms: int) -> None:
        """
        Advance the clock by ``by_ms``: wake sleepers in order of time, and run each before the clock moves further.
        """
        end_ms = self._now_ms + by_ms
        await run_ready()
        while (next_ms := self.next_ms()) is not None and next_ms <= end_ms:
            self.move_to(next_ms)
            await run_ready()
        self.move_to(end_ms)
        await run_ready()


async def run_ready(steps: int = STEPS_BETWEEN) -> None:
    """Run the loop's ready tasks, and the tasks that they make ready, for at most ``steps`` steps."""
    for _ in range(steps):
        await asyncio.sleep(0)
