"""A value that costs much to read, so that it is read seldom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from txnframework.environment import Environment
from txnframework.runtime.tasks import start_task

FRESH_MS = 5_000
"""How long a value is used at least before it is read again."""
LOAD_MAX = 20
"""A value is used for at least this many times as long as its reading took."""

T = TypeVar("T")


class Remembered(Generic[T]):
    """What ``read`` returned last; concurrent callers share one reading, which goes on when a caller is cancelled."""

    def __init__(self, read: Callable[[], Awaitable[T]], environment: Environment) -> None:
        self._read = read
        self._environment = environment
        self._found: tuple[T, int] | None = None
        self._reading: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the value; it is read if it is too old."""
        if self._found is not None and self._environment.monotonic_ms() < self._found[1]:
            return self._found[0]
        if self._reading is None:
            self._reading = start_task(self._once())
            self._reading.add_done_callback(self._end)
        return await asyncio.shield(self._reading)

    def forget(self) -> None:
        """Read the value anew the next time; a reading in progress may have begun before a change."""
        self._found = self._reading = None

    async def _once(self) -> T:
        began_ms, task = self._environment.monotonic_ms(), asyncio.current_task()
        found = await self._read()
        now_ms = self._environment.monotonic_ms()
        if self._reading is task:
            self._found = found, now_ms + max(FRESH_MS, LOAD_MAX * (now_ms - began_ms))
        return found

    def _end(self, done: asyncio.Task[T]) -> None:
        if self._reading is done:
            self._reading = None
        read_exception(done)


def read_exception(done: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting the failure of a read that every waiter has left."""
    if not done.cancelled():
        done.exception()
