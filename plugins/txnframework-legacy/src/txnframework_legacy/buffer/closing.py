"""Whether a buffer was closed, for everything that it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from txnframework.errors import Closed

R = TypeVar("R")


class Closing:
    """Of the buffer of one segment."""

    def __init__(self, segment: str) -> None:
        self._segment = segment
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Let whoever waits have Closed, and whoever asks; may be repeated."""
        self._closed.set()

    def require_open(self) -> None:
        """Raise Closed if it was closed."""
        if self._closed.is_set():
            raise Closed(f"the buffer of {self._segment} was closed")

    async def unless_closed(self, work: Coroutine[Any, Any, R]) -> R:
        """Return what ``work`` returns, or stop it when the buffer is closed."""
        working = asyncio.ensure_future(work)
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({working, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                self.require_open()
            return working.result()
        finally:
            for one in (working, closing):
                one.cancel()
            await asyncio.gather(working, closing, return_exceptions=True)
