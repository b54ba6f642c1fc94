"""Going on when a store was away: a database that is started again is back in seconds, a failed query when somebody
looks.
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
    Return what ``operation`` returns; while a store is away, ask again as often and as slowly as ``client.retries_max``
    and its delays say.

    Only for what may be done again when nobody knows whether it was done: it is asked again after OutcomeUnknown too.

    :raises Unavailable: a store was away for longer. OutcomeUnknown likewise.
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
