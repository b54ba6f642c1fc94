"""Time, randomness and the name of the process: the only module of the core that asks the system for them."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import time
from pathlib import Path
from typing import Protocol

HOST_CHARACTERS_MAX = 64
CLIENT_CHARACTERS_MAX = 64
# Linux's monotonic clock that goes on while the machine is suspended.
_BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Environment(Protocol):
    """The core's access to the outside world; a simulation passes its own."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""

    async def sleep_until(self, at_ms: int) -> None:
        """Return at ``at_ms`` or a little later; immediately if it has passed."""

    def monotonic_ms(self) -> int:
        """
        Return milliseconds since an arbitrary time, by a clock that is never set.

        For what only this process compares. Time in which the machine was suspended counts where the system can tell.
        """

    async def sleep(self, duration_ms: int) -> None:
        """Return when ``monotonic_ms`` has grown by ``duration_ms``, or a little later."""

    def random_bits(self, count: int) -> int:
        """Return ``count`` random bits as an integer."""

    def process_name(self, client: str = "") -> str:
        """
        Return a short text by which people find this process, ``CLIENT@HOST:PID``: its name, host and process id.

        ``client``: the name of the program, without white space, ``@`` or ``/``; empty: the name of its file.
        """


class SystemEnvironment:
    """The real clock, the operating system's randomness, and its name of this process."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    async def sleep_until(self, at_ms: int) -> None:
        """Return at ``at_ms`` or a little later; immediately if it has passed."""
        await asyncio.sleep(max(0, at_ms - self.now_ms()) / 1000)

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary time, by a clock of this process that is never set."""
        return (time.monotonic_ns() if _BOOT_TIME is None else time.clock_gettime_ns(_BOOT_TIME)) // 1_000_000

    async def sleep(self, duration_ms: int) -> None:
        """Return when ``monotonic_ms`` has grown by ``duration_ms``, or a little later."""
        await asyncio.sleep(max(0, duration_ms) / 1000)

    def random_bits(self, count: int) -> int:
        """Return ``count`` random bits as an integer."""
        return secrets.randbits(count)

    def process_name(self, client: str = "") -> str:
        """Return a short text by which people find this process, ``CLIENT@HOST:PID``."""
        return f"{client or program_name(sys.argv)}@{socket.gethostname()[:HOST_CHARACTERS_MAX]}:{os.getpid()}"


def program_name(arguments: list[str]) -> str:
    """Return the name of the program that these arguments started, without white space, ``@`` and ``/``."""
    file = Path(arguments[0] if arguments else "")
    # A package that was started with ``python -m`` is named by its folder.
    name = file.parent.name if file.name == "__main__.py" else file.stem
    kept = "".join("-" if one.isspace() or one in "@/" else one for one in name if one.isprintable() or one.isspace())
    return kept.strip("-")[:CLIENT_CHARACTERS_MAX] or "python"
