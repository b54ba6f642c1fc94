"""
The wait between two attempts at what failed: longer each time, and never the same for two processes.

Attempts that fail together, because a store was restarted, would come back together as well: chance spreads them. Time
and chance are the environment's, so that a simulation repeats every wait. tenacity and stamina were looked at: both can
be given a clock, and draw their jitter from Python's own ``random``; what an attempt's error means is decided by the
callers, so there is nothing else of theirs to use.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.environment import Environment

_CHANCE_BITS = 16
_DOUBLINGS_MAX = 32


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits of ``first_ms`` at most after the first failure, doubling up to ``longest_ms``."""

    environment: Environment
    first_ms: int
    longest_ms: int

    def delay_ms(self, failures: int) -> int:
        """Return how long to wait after so many failures in a row, from 1: between half of the longest wait and it."""
        longest_ms = min(self.first_ms << min(max(0, failures - 1), _DOUBLINGS_MAX), self.longest_ms)
        shortened_ms = longest_ms // 2 * self.environment.random_bits(_CHANCE_BITS) >> _CHANCE_BITS
        return longest_ms - shortened_ms

    async def pause(self, failures: int) -> None:
        """Wait for so long."""
        await self.environment.sleep_until(self.environment.now_ms() + self.delay_ms(failures))
