"""Sessions in a PostgreSQL database: their heartbeats have a connection of their own."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.plugin import MARGIN
from txnframework.runtime.tasks import start_task
from txnframework_sql._leases import LeaseSession
from txnframework_sql.steps.leases import Clock, extend_alone
from txnframework_sql.steps.statements import Executor

_REPLY_S_MIN = 1.0
"""A heartbeat waits so long for a reply, also of a short session: a loaded server is not away."""


def reply_timeout_s(ttl_ms: int) -> float:
    """
    Return how long a heartbeat waits for a reply.

    A later one would not extend the session, and the next heartbeat needs another connection if this one hangs.
    """
    return max(_REPLY_S_MIN, (ttl_ms - ttl_ms // MARGIN) / 1_000)


class PostgresqlLeaseSession(LeaseSession):
    """
    A session whose heartbeats wait for no other work of this process or of others.

    A heartbeat uses a connection of its own, and changes the own session's row alone. The leases of expired sessions
    are ended apart from it, because that changes records, which others may have locked.

    :param heartbeats: performs the heartbeats, over connections that nothing else uses.
    """

    def __init__(
        self, executor: Executor, heartbeats: Executor, environment: Environment, name: str, ttl_ms: int, clock: Clock
    ) -> None:
        super().__init__(executor, environment, name, ttl_ms, clock)
        self._heartbeats = heartbeats
        self._ending: asyncio.Task[None] | None = None

    async def _write_expiry(self) -> bool:
        if self._ending is None or self._ending.done():
            self._ending = start_task(self._end_dead(), name="txnframework-sql expired sessions")
        return await self._heartbeats.write(lambda: extend_alone(self.name, self._ttl_ms, self._clock))

    async def _end_dead(self) -> None:
        # After an error, the next heartbeat tries again.
        with suppress(TxnFrameworkError):
            await self._end_expired()

    async def _stop(self) -> None:
        await super()._stop()
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.gather(self._ending, return_exceptions=True)
