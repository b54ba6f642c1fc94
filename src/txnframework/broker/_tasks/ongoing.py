"""Work that goes on by itself from a start to a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from txnframework.backoff import Backoff
from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError

RETRY_DELAY_MS = 1_000
"""The longest wait before work begins anew after the store was away."""


class Ongoing:
    """One piece of work, run as a task: begun once, however often it is started, and stopped by cancelling it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """Whether it was started, and not stopped since; it may have come to its own end."""
        return self._task is not None

    def start(self) -> None:
        """Begin; once is enough."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._work())

    async def stop(self) -> None:
        """Stop, and wait for its end: what is under way is given up, so every step of the work has to bear that."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


async def until_closed(work: Callable[[], Awaitable[None]], environment: Environment) -> None:
    """
    Do ``work`` again and again until a store that it needs is closed.

    After an error of the framework it is begun anew in at most ``RETRY_DELAY_MS``; any other exception is a defect, and
    ends it.
    """
    backoff = Backoff(environment, RETRY_DELAY_MS, RETRY_DELAY_MS)
    while True:
        try:
            await work()
        except Closed:
            return
        except TxnFrameworkError:
            await backoff.pause(1)
