"""Time and randomness: the only module of the core that reads a clock or a source of randomness."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Protocol


class Environment(Protocol):
    """The core's access to the outside world; a simulation passes its own."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""

    async def sleep_until(self, at_ms: int) -> None:
        """Return at ``at_ms`` or a little later; immediately if it has passed."""

    def random_bits(self, count: int) -> int:
        """Return ``count`` random bits as an integer."""


class SystemEnvironment:
    """The real clock and the operating system's randomness."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    async def sleep_until(self, at_ms: int) -> None:
        """Return at ``at_ms`` or a little later; immediately if it has passed."""
        await asyncio.sleep(max(0, at_ms - self.now_ms()) / 1000)

    def random_bits(self, count: int) -> int:
        """Return ``count`` random bits as an integer."""
        return secrets.randbits(count)
