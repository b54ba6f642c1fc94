"""A client's way to its space: the points where it waits, and where a test can cut it off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from txnframework.errors import Closed, OutcomeUnknown, Unavailable

T = TypeVar("T")

Pause = Callable[[], Awaitable[None]]
"""Called wherever a real store would wait for the network; a simulation decides there who goes on."""


async def yield_once() -> None:
    """Let everything else that is ready go first, once."""
    await asyncio.sleep(0)


class Link:
    """
    Runs steps on a space the way a connection would: wait, apply the whole step at once, wait for the reply.

    While it is cut, a write that is sent is applied and its reply is lost; nothing else gets through.
    """

    def __init__(self, name: str, pause: Pause) -> None:
        self.name = name
        self.is_closed = False
        self.is_cut = False
        self._pause = pause
        self._lost_reply = False

    async def read(self, step: Callable[[], T]) -> T:
        """Return what ``step`` returns; Closed or Unavailable if the answer cannot arrive."""
        if self.is_closed:
            raise self._closed()
        await self._pause()
        if self.is_closed or self.is_cut:
            raise self._unreachable()
        answer = step()
        await self._pause()
        if self.is_closed or self.is_cut:
            raise self._unreachable()
        return answer

    async def write(self, step: Callable[[], T]) -> T:
        """Return what ``step`` returns; OutcomeUnknown if it was sent and the answer cannot arrive."""
        if self.is_closed:
            raise self._closed()
        if self.is_cut and self._lost_reply:
            raise Unavailable(f"{self.name} is cut off")
        await self._pause()
        if self.is_closed:
            raise OutcomeUnknown(f"{self.name} was closed while a write was in flight")
        answer = step()
        await self._pause()
        if self.is_closed or self.is_cut:
            self._lost_reply = self.is_cut
            raise OutcomeUnknown(f"{self.name}: the reply to a write was lost")
        return answer

    def cut(self) -> None:
        """Lose the next reply, then reach nothing until ``restore``."""
        self.is_cut = True
        self._lost_reply = False

    def restore(self) -> None:
        """Reach the space again."""
        self.is_cut = False

    def close(self) -> None:
        """Reach nothing any more; may be repeated."""
        self.is_closed = True

    def require_open(self) -> None:
        """Raise Closed if this was closed."""
        if self.is_closed:
            raise self._closed()

    def _closed(self) -> Closed:
        return Closed(f"{self.name} was closed")

    def _unreachable(self) -> Closed | Unavailable:
        return self._closed() if self.is_closed else Unavailable(f"{self.name} is cut off")
