"""What metadata stores share about leases: the option of their time, a held lease, and when a session has lapsed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from msgspec import Meta
from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.interfaces import ILease
from txnframework.model.metadata import Key

SESSION_TTL_MS = 10_000
"""The default of ``session_ttl_ms`` in every store."""

SessionTtlMs = Annotated[
    int,
    Meta(ge=30, description="How long a process keeps its leases after its last heartbeat, which it sends more often."),
]
"""The type of the option ``session_ttl_ms`` of a metadata store whose sessions expire."""

MARGIN = 6
"""A session lapses in its own process this fraction of its time before other processes may take its leases."""

HEARTBEATS = 3
"""A session that holds a lease is renewed so often in its time."""


@implementer(ILease)
class SessionLease:
    """
    A lease that a session of this process holds.

    ``release``: releases the lease in the store; it ignores a lease that was lost.
    """

    def __init__(self, name: str, key: Key, fencing: int, release: Callable[[Any], Awaitable[None]]) -> None:
        self.name = name
        self.key = key
        self.version = fencing
        self.fencing = fencing
        self._release = release
        self._lost = asyncio.Event()

    async def lost(self) -> None:
        """Return when the lease can no longer be relied on; see ILease."""
        await self._lost.wait()

    async def release(self) -> None:
        """Release the lease now; idempotent, also after it was lost."""
        await self._release(self)

    def end(self) -> None:
        """Wake the callers that wait for its loss."""
        self._lost.set()


class SessionValidity:
    """
    How long the store surely keeps the session of this process, minus a margin for clocks of different speed.

    The store gives leases away ``ttl_ms`` after the arrival of the last heartbeat. This process counts by its own
    clock, from the time before it sent the heartbeat. So the two clocks are never compared, and it drops its leases
    first.
    """

    def __init__(self, environment: Environment, ttl_ms: int) -> None:
        self._environment = environment
        self.ttl_ms = ttl_ms
        self.until_ms = 0

    def extend(self, begun_ms: int) -> None:
        """Note that the store has confirmed a heartbeat that was sent after ``begun_ms``."""
        self.until_ms = max(self.until_ms, begun_ms + self.ttl_ms - self.ttl_ms // MARGIN)

    @property
    def is_over(self) -> bool:
        """Whether other processes may have the session's leases soon."""
        return self._environment.monotonic_ms() >= self.until_ms

    async def lapse(self, holds: Callable[[], bool], lapsed: Callable[[], None]) -> None:
        """Call ``lapsed`` whenever the session has leases, and no heartbeat was confirmed in time; never return."""
        while True:
            # A lease acquired in the meantime extends the session beyond this time.
            left_ms = self.until_ms - self._environment.monotonic_ms()
            await self._environment.sleep(left_ms if holds() else self.ttl_ms // HEARTBEATS)
            if holds() and self.is_over:
                lapsed()
