"""The closed state of a buffer, and waits that end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from txnframework.errors import Closed

R = TypeVar("R")


class Closing:
    """The closed state of one segment's buffer."""

    def __init__(self, segment: str) -> None:
        self._segment = segment
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Make all waits and later calls raise ``Closed``. Idempotent."""
        self._closed.set()

    def require_open(self) -> None:
        """Raise ``Closed`` if the buffer was closed."""
        if self._closed.is_set():
            raise Closed(f"the buffer of {self._segment} was closed")

    async def unless_closed(self, work: Coroutine[Any, Any, R]) -> R:
        """Return the result of ``work``; cancel it and raise ``Closed`` when the buffer is closed."""
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
