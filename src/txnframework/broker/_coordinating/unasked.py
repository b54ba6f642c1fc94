"""Opening coordinators that nobody asked for, so that this process sweeps for others."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError
from txnframework.runtime.backoff import Backoff

_LOG = logging.getLogger(__name__)

DELAY_MS = 1_000
DELAY_MS_MAX = 30_000
"""The longest wait before it is tried the first time, and after many failures."""


async def open_each(
    names: Iterable[str], open_one: Callable[[str], Awaitable[object]], environment: Environment
) -> None:
    """
    Open all of them, and those that cannot be opened now again later.

    Not at once: a program that is gone in a moment has no time for it.
    """
    backoff = Backoff(environment, DELAY_MS, DELAY_MS_MAX)
    left, failures = list(names), 0
    while left:
        failures += 1
        await backoff.pause(failures)
        for name in tuple(left):
            try:
                await open_one(name)
            except Closed:
                return
            except TxnFrameworkError as error:
                if failures == 1:
                    _LOG.warning("coordinator %s cannot be opened to sweep, and is tried again: %s", name, error)
            else:
                left.remove(name)
