"""Sessions on a SQLite file: their renewals wait neither for other jobs of its thread nor for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from txnframework.environment import Environment
from txnframework.plugin import HEARTBEATS, MARGIN
from txnframework_sql._leases import LeaseSession
from txnframework_sql.sqlite._jobs import RepeatedWrite, Work
from txnframework_sql.steps.leases import Clock
from txnframework_sql.steps.statements import Executor, Steps

T = TypeVar("T")

# A process whose event loop is busy for this many lifetimes of the session loses its leases.
_BUSY_LIFETIMES = 10


def renews_alone(now_ms: int, valid_until_ms: int, heard_ms: int, ttl_ms: int) -> bool:
    """
    Return whether a session is renewed without the event loop: the loop is late with it, and not silent for too long.

    :param valid_until_ms: when the session expires locally; ``heard_ms``: when the event loop last ran.
    """
    return now_ms >= valid_until_ms - ttl_ms // HEARTBEATS and now_ms - heard_ms <= _BUSY_LIFETIMES * ttl_ms


class SerialExecutor(Executor, Protocol):
    """An executor that performs one job after the other, on a thread of its own."""

    async def write_urgently(self, work: Work[T]) -> T:
        """Return the result of the steps as ``write`` does; they go before all that wait."""

    def repeat(self, write: RepeatedWrite) -> Callable[[], None]:
        """Perform ``write`` on the executor's thread until the returned function is called."""


class SqliteLeaseSession(LeaseSession):
    """A session that the thread of the database renews while the event loop is busy."""

    def __init__(
        self, executor: SerialExecutor, environment: Environment, name: str, ttl_ms: int, clock: Clock
    ) -> None:
        super().__init__(executor, environment, name, ttl_ms, clock)
        self._serial = executor
        # When the event loop last ran a step of this session.
        self._heard_ms = 0
        self._stop_repeating: Callable[[], None] | None = None

    def _start(self) -> tuple[asyncio.Task[None], ...]:
        self._heard_ms = self._environment.monotonic_ms()
        self._stop_repeating = self._serial.repeat(RepeatedWrite(self._ttl_ms / MARGIN / 1000, self._due))
        return super()._start()

    async def _stop(self) -> None:
        if self._stop_repeating is not None:
            self._stop_repeating()
        await super()._stop()

    async def _renew(self) -> None:
        self._heard_ms = self._environment.monotonic_ms()
        await super()._renew()

    async def _write_expiry(self) -> bool:
        # Other jobs of the database may not delay this.
        return await self._serial.write_urgently(self._extended)

    def _due(self) -> tuple[Callable[[], Steps[bool]], Callable[[bool], None]] | None:
        """Return a renewal if the event loop is late with its own; called on the thread of the database."""
        now_ms = self._environment.monotonic_ms()
        if not self._held or not renews_alone(now_ms, self._validity.until_ms, self._heard_ms, self._ttl_ms):
            return None

        def done(is_extended: bool) -> None:
            # A session that has expired lapses in the event loop, when the loop is back. The loop may extend it at the
            # same time: then the earlier of the two times may stay, which is safe.
            if is_extended:
                self._validity.extend(now_ms)

        return self._extended, done
