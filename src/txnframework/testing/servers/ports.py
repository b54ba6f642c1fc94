"""Ports that a server can use now, and use again after it was killed."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

# The range is below that of outgoing connections: one of those must not take the port of a server that is down for a
# moment.
_LOWEST, _HIGHEST = 15_000, 32_000
_ATTEMPTS_MAX = 1_000


def free_ports(count: int) -> tuple[int, ...]:
    """
    Return ``count`` unused ports of the loopback interface.

    :raises OSError: there are not enough free ports.
    """
    found: list[int] = []
    with ExitStack() as taken:
        for _ in range(_ATTEMPTS_MAX):
            if len(found) == count:
                return tuple(found)
            # Random on purpose, not seeded: several test runs share one machine.
            port = random.SystemRandom().randint(_LOWEST, _HIGHEST)
            one = taken.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    raise OSError(f"no {count} free ports between {_LOWEST} and {_HIGHEST}")
