"""Exponential backoff with jitter.

Jitter spreads the retries of many processes after a store's restart. Clock and randomness come from the environment, so
a simulation repeats every wait exactly. tenacity and stamina take their jitter from Python's ``random`` and cannot do
that.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.environment import Environment

_CHANCE_BITS = 16
_DOUBLINGS_MAX = 32


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays of at most ``first_ms`` after the first failure, doubled with each further one up to ``longest_ms``."""

    environment: Environment
    first_ms: int
    longest_ms: int

    def delay_ms(self, failures: int) -> int:
        """Return the delay after ``failures`` consecutive failures (at least 1): half of the maximum, or more."""
        longest_ms = min(self.first_ms << min(max(0, failures - 1), _DOUBLINGS_MAX), self.longest_ms)
        shortened_ms = longest_ms // 2 * self.environment.random_bits(_CHANCE_BITS) >> _CHANCE_BITS
        return longest_ms - shortened_ms

    async def pause(self, failures: int) -> None:
        """Sleep for ``delay_ms(failures)``."""
        await self.environment.sleep_until(self.environment.now_ms() + self.delay_ms(failures))
