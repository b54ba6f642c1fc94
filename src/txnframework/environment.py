"""Time, randomness and the name of the process: the only module of the core that asks the system for them."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from typing import Protocol

HOST_CHARACTERS_MAX = 64


class Environment(Protocol):
    """The core's access to the outside world; a simulation passes its own."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""

    async def sleep_until(self, at_ms: int) -> None:
        """Return at ``at_ms`` or a little later; immediately if it has passed."""

    def random_bits(self, count: int) -> int:
        """Return ``count`` random bits as an integer."""

    def process_name(self) -> str:
        """Return a short text by which people find this process: its host and its process id, as ``HOST:PID``."""


class SystemEnvironment:
    """The real clock, the operating system's randomness, and its name of this process."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    async def sleep_until(self, at_ms: int) -> None:
        """Return at ``at_ms`` or a little later; immediately if it has passed."""
        await asyncio.sleep(max(0, at_ms - self.now_ms()) / 1000)

    def random_bits(self, count: int) -> int:
        """Return ``count`` random bits as an integer."""
        return secrets.randbits(count)

    def process_name(self) -> str:
        """Return a short text by which people find this process: its host and its process id, as ``HOST:PID``."""
        return f"{socket.gethostname()[:HOST_CHARACTERS_MAX]}:{os.getpid()}"
