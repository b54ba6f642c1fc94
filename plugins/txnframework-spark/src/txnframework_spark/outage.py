"""Retries while a store is unavailable: a restarted database is back in seconds, while a failed query stays down until
an operator restarts it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from txnframework.broker import Host
from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.runtime.backoff import Backoff

T = TypeVar("T")


async def outlast(host: Host, operation: Callable[[], Awaitable[T]]) -> T:
    """
    Return the result of ``operation``; retry it while a store is unavailable.

    ``client.retries_max`` and the retry delays of the configuration apply. ``operation`` must be idempotent, because it
    is also retried after OutcomeUnknown.

    :raises Unavailable: a store was unavailable for longer.
    :raises OutcomeUnknown: the last attempt had an unknown outcome.
    """
    bounds = host.config.client
    backoff = Backoff(host.environment, bounds.retry_delay_ms, bounds.retry_delay_ms_max)
    for attempt in range(bounds.retries_max + 1):
        try:
            return await operation()
        except (Unavailable, OutcomeUnknown):
            if attempt == bounds.retries_max:
                raise
        await backoff.pause(attempt + 1)
    raise AssertionError("the last attempt returns or raises")
