"""Repeated requests to the servers: for how long, and with which pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_CHANCE_BITS = 16


class Attempts:
    """
    The attempts of one call, for ``patience_s``. Pauses double from ``first_s`` to ``longest_s``, less up to a half.

    Servers do not know the time of an environment, which may be virtual, and the clock of a machine may be set. So
    whatever waits for servers waits by the clock of the event loop. Only the chance comes from the environment.
    """

    def __init__(self, patience_s: float, first_s: float, longest_s: float, random_bits: Callable[[int], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + patience_s
        self._pause_s = first_s
        self._longest_s = longest_s
        self._random_bits = random_bits

    @property
    def are_over(self) -> bool:
        """Whether the call should fail now."""
        return self._loop.time() > self._until_s

    async def pause(self) -> None:
        """Wait before the next attempt."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._longest_s)
        await asyncio.sleep(pause_s * (1 - self._random_bits(_CHANCE_BITS) / (2 << _CHANCE_BITS)))
