"""Clocks of machines that do not agree."""

from __future__ import annotations

from txnframework.testing.clock import VirtualEnvironment


class SkewedEnvironment:
    """An environment whose clock is ahead of the world's by ``ahead_ms``, or behind it."""

    def __init__(self, world: VirtualEnvironment, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        self._world = world

    def now_ms(self) -> int:
        """Return what this machine takes for the time."""
        return self._world.now_ms() + self.ahead_ms

    async def sleep_until(self, at_ms: int) -> None:
        """Return when this clock has reached ``at_ms``, wherever it was moved meanwhile."""
        while True:
            await self._world.sleep_until(at_ms - self.ahead_ms)
            if self.now_ms() >= at_ms:
                return

    def random_bits(self, count: int) -> int:
        """Return bits from the world's seeded source."""
        return self._world.random_bits(count)
