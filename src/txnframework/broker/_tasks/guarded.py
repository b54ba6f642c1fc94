"""Work that goes on beside others until it ends, is stopped, or meets what does not pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from txnframework.backoff import Backoff
from txnframework.environment import Environment
from txnframework.errors import OutcomeUnknown, Unavailable

RETRY_DELAY_MS = 100
RETRY_DELAY_MS_MAX = 1_000
"""The longest wait before work is done again after the first failure, and after many of them."""

Work = Callable[[], Awaitable[None]]


class GuardedTasks:
    """Runs work, again after what may pass; ``failed`` is told of anything else, and that work is over."""

    def __init__(self, environment: Environment, failed: Callable[[Exception], None]) -> None:
        self._backoff = Backoff(environment, RETRY_DELAY_MS, RETRY_DELAY_MS_MAX)
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Work) -> None:
        """Run ``work`` beside everything else."""
        task = asyncio.ensure_future(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel everything, and wait for its end; the caller's own task is left alone."""
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, work: Work) -> None:
        failures = 0
        while True:
            try:
                await work()
            except (Unavailable, OutcomeUnknown):
                failures += 1
                await self._backoff.pause(failures)
            except Exception as error:
                self._failed(error)
                return
            else:
                return
