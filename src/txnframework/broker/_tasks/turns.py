"""One at a time, for each of many things."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Turns(Generic[K]):
    """Whoever works on a thing waits for those who came before, in order; of things nobody works on nothing is kept."""

    def __init__(self) -> None:
        self._locks: dict[K, asyncio.Lock] = {}
        self._asking: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def turn(self, key: K) -> AsyncIterator[None]:
        """Have ``key`` for oneself."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._asking[key] = self._asking.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._asking[key] -= 1
            if not self._asking[key]:
                del self._locks[key], self._asking[key]
