"""How what is received comes into the event loop: results, watch events and states, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Returns:
    """What goes from kazoo's thread into the loop: in order, and with one wake-up for all that wait together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_on_its_way = False

    def put(self, receive: Callable[[Any], None], what: Any) -> None:
        """Call ``receive`` in the loop, from any thread; once the loop was closed nobody waits, and nothing is kept."""
        self._waiting.append((receive, what))
        if self._loop.is_closed():
            # Also what a wake-up was on its way for, that came too late.
            self._waiting.clear()
        elif not self._is_on_its_way:
            self._is_on_its_way = True
            try:
                self._loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:
                # It was closed just now.
                self._waiting.clear()

    def hold(self) -> None:
        """Wake nobody for what is put from now on: who holds, in the loop, delivers."""
        self._is_on_its_way = True

    def deliver(self) -> None:
        """Call whoever is to receive what waits; in the loop."""
        # First the mark, then the look: what is put in between has a wake-up of its own.
        self._is_on_its_way = False
        try:
            while self._waiting:
                receive, what = self._waiting.popleft()
                receive(what)
        finally:
            # Whoever failed to receive something keeps nobody else from it.
            if self._waiting:
                self._loop.call_soon(self.deliver)


class Flight:
    """A request under way; kazoo calls one of the methods, from its thread or the caller's, sometimes twice."""

    __slots__ = ("_receive", "_returns")

    def __init__(self, returns: Returns, receive: Callable[[Any], None]) -> None:
        self._returns = returns
        self._receive = receive

    def set(self, value: object = None) -> None:
        """Take what the request's ``deserialize`` returned."""
        self._returns.put(self._receive, value)

    def set_exception(self, error: BaseException) -> None:
        """Take what came instead."""
        self._returns.put(self._receive, error)
