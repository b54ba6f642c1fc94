"""Environments with a clock that a test advances."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from bisect import insort
from itertools import count

START_MS = 1_700_000_000_000
"""The start of virtual time: a realistic date, so that printed times are recognizable."""

PROCESS_PLACE = "test:1"
"""What these environments call the process."""

STEPS_BETWEEN = 50
"""The number of event loop steps in which ready tasks run before the clock moves."""


class VirtualEnvironment:
    """
    An ``Environment`` with a clock that the test controls and seeded random numbers.

    Its monotonic clock shows the same time until the test sets the clock (``set_clock``).
    """

    def __init__(self, seed: int = 0, now_ms: int = START_MS) -> None:
        # By the monotonic clock, as are the times of sleepers.
        self._now_ms = now_ms
        self._set_ms = 0
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        """Return the virtual time in milliseconds since 1970."""
        return self._now_ms + self._set_ms

    def set_clock(self, by_ms: int) -> None:
        """Set the clock forward, or back, as an administrator does; what sleeps already sleeps as long as before."""
        self._set_ms += by_ms

    def monotonic_ms(self) -> int:
        """Return the virtual time, which ``set_clock`` does not change."""
        return self._now_ms

    async def sleep(self, duration_ms: int) -> None:
        """Wait until time has advanced by ``duration_ms``; for 0, wait for one step of the event loop."""
        await self._sleep_until(self._now_ms + duration_ms)

    async def sleep_until(self, at_ms: int) -> None:
        """Wait until ``advance`` reaches ``at_ms``; if that time has passed, wait for one step of the event loop."""
        await self._sleep_until(at_ms - self._set_ms)

    async def _sleep_until(self, at_ms: int) -> None:
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

    def process_name(self, client: str = "") -> str:
        """Return the same name in every run."""
        return f"{client or 'program'}@{PROCESS_PLACE}"

    def next_ms(self) -> int | None:
        """Return the time at which the next sleeper wakes; None if nothing sleeps."""
        return self._sleepers[0][0] + self._set_ms if self._sleepers else None

    def move_to(self, at_ms: int) -> None:
        """Move the clock to ``at_ms`` unless it is later already, and wake all sleepers that are due."""
        self._now_ms = max(self._now_ms, at_ms - self._set_ms)
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
        while (next_ms := self.next_ms()) is not None and next_ms <= end_ms + self._set_ms:
            self.move_to(next_ms)
            await run_ready()
        self.move_to(end_ms + self._set_ms)
        await run_ready()


class AdvanceableEnvironment:
    """
    An ``Environment`` with the real clock, which a test can advance; time also passes by itself.

    It is for tests of programs, whose retries and timeouts then work as usual. Several event loops may use it.
    """

    def __init__(self) -> None:
        self._advanced_ms = 0
        self._sleepers: dict[asyncio.Future[None], int] = {}

    def now_ms(self) -> int:
        """Return milliseconds since 1970, by the clock that the test advances."""
        return time.time_ns() // 1_000_000 + self._advanced_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary time; the test advances it, too."""
        return time.monotonic_ns() // 1_000_000 + self._advanced_ms

    async def sleep(self, duration_ms: int) -> None:
        """Return when time has passed, or was advanced, by ``duration_ms``."""
        await self.sleep_until(self.now_ms() + duration_ms)

    async def sleep_until(self, at_ms: int) -> None:
        """Return when the clock has reached ``at_ms``, because time has passed or was advanced."""
        while (left_ms := at_ms - self.now_ms()) > 0:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sleepers[woken] = at_ms
            try:
                await asyncio.wait({woken}, timeout=left_ms / 1_000)
            finally:
                del self._sleepers[woken]
        await asyncio.sleep(0)

    def random_bits(self, count: int) -> int:
        """Return ``count`` random bits as an integer."""
        return secrets.randbits(count)

    def process_name(self, client: str = "") -> str:
        """Return the same name in every run."""
        return f"{client or 'program'}@{PROCESS_PLACE}"

    async def advance(self, by_ms: int) -> None:
        """Advance the clock by ``by_ms``, as ``VirtualEnvironment.advance`` does."""
        end_ms = self.now_ms() + by_ms
        await run_ready()
        while (next_ms := min(self._sleepers.values(), default=end_ms)) < end_ms:
            self.move_to(next_ms)
            await run_ready()
        self.move_to(end_ms)
        await run_ready()

    def move_to(self, at_ms: int) -> None:
        """Move the clock to ``at_ms`` unless it is later already, and wake all sleepers that are due."""
        self._advanced_ms += max(0, at_ms - self.now_ms())
        now_ms = self.now_ms()
        for woken, due_ms in tuple(self._sleepers.items()):
            if due_ms <= now_ms:
                woken.get_loop().call_soon_threadsafe(_wake, woken)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


async def run_ready(steps: int = STEPS_BETWEEN) -> None:
    """Run the loop's ready tasks, and the tasks that they make ready, for at most ``steps`` steps."""
    for _ in range(steps):
        await asyncio.sleep(0)
