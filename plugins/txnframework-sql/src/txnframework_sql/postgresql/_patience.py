"""How long the replies to one connection's statements are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOKS = 4


class Patience:
    """
    Calls ``give_up`` when one reply is missing for ``timeout_s``, and at most a quarter of that later.

    One timer looks after all statements of a connection, every quarter, and none while there are none: a timer for
    each, which nearly always ends in a thousandth of its time, costs as much as sending it. It counts how often it
    looked in vain, in real time, since that is spent outside this process; for as long as the process itself stands
    still, it looks once.
    """

    def __init__(self, timeout_s: float, give_up: Callable[[], None]) -> None:
        self.is_over = False
        """Whether the reply that is waited for was given up."""
        self._interval_s = timeout_s / _LOOKS
        self._give_up = give_up
        self._is_waiting = False
        self._in_vain = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def begin(self) -> None:
        """A statement is about to be sent."""
        self._in_vain = 0
        self._is_waiting = True
        if self._timer is None:
            self._set()

    def end(self) -> None:
        """Its reply came, or is not waited for any more."""
        self._is_waiting = self.is_over = False

    def close(self) -> None:
        """Look no more; may be repeated."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        if not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._is_waiting:
            return
        # The first look may come just after the statement was sent.
        if self._in_vain < _LOOKS:
            self._in_vain += 1
            self._set()
        else:
            self.is_over = True
            self._give_up()
