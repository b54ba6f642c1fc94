"""An environment whose time moves only when a test says so."""

from __future__ import annotations

import asyncio
import random
from bisect import insort
from itertools import count

START_MS = 1_700_000_000_000
"""Where virtual time begins, so that times look like times in what is printed."""

STEPS_BETWEEN = 50
"""How often everything that is ready may run before time moves on."""


class VirtualEnvironment:
    """An ``Environment``: time under control, randomness from a seed."""

    def __init__(self, seed: int = 0, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        """Return virtual milliseconds since 1970."""
        return self._now_ms

    async def sleep_until(self, at_ms: int) -> None:
        """Return when ``advance`` has reached ``at_ms``; after one round of the loop if it has passed."""
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
        """Return ``count`` bits from the seeded source."""
        return self._random.getrandbits(count)

    def next_ms(self) -> int | None:
        """Return when the next sleeper wakes; None: nobody sleeps."""
        return self._sleepers[0][0] if self._sleepers else None

    def move_to(self, at_ms: int) -> None:
        """Let time be ``at_ms``, if it is not later already, and wake whoever slept until then."""
        self._now_ms = max(self._now_ms, at_ms)
        while self._sleepers and self._sleepers[0][0] <= self._now_ms:
            _, _, woken = self._sleepers.pop(0)
            if not woken.done():
                woken.set_result(None)

    async def advance(self, by_ms: int) -> None:
        """Let ``by_ms`` pass: wake whoever sleeps, in the order of time, and let each run before time goes on."""
        end_ms = self._now_ms + by_ms
        await run_ready()
        while (next_ms := self.next_ms()) is not None and next_ms <= end_ms:
            self.move_to(next_ms)
            await run_ready()
        self.move_to(end_ms)
        await run_ready()


async def run_ready(steps: int = STEPS_BETWEEN) -> None:
    """Let everything that is ready in this loop run, and what becomes ready by that, for a bounded number of steps."""
    for _ in range(steps):
        await asyncio.sleep(0)
