"""What is to run next in a simulation."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from itertools import count

from txnframework_simulation.simulator.process import Process


class Schedule:
    """
    Callbacks that are ready, in order within each process, and timers.

    Which process goes next is drawn from the seed; what belongs to a killed process is never handed out.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._ready: dict[Process, deque[asyncio.Handle]] = {}
        self._timers: list[tuple[int, int, Process, asyncio.TimerHandle]] = []
        self._order = count()

    def add(self, process: Process, handle: asyncio.Handle) -> None:
        """Let it run after what is ready in its process."""
        if process.alive:
            self._ready.setdefault(process, deque()).append(handle)

    def add_timer(self, due_ms: int, process: Process, handle: asyncio.TimerHandle) -> None:
        """Let it become ready at ``due_ms``."""
        heapq.heappush(self._timers, (due_ms, next(self._order), process, handle))

    def take(self) -> tuple[Process, asyncio.Handle] | None:
        """Return what runs next; None: nothing is ready."""
        while waiting := [process for process in self._ready if not process.frozen]:
            process = waiting[0] if len(waiting) == 1 else self._random.choice(waiting)
            queue = self._ready[process]
            handle = queue.popleft()
            if not queue or not process.alive:
                del self._ready[process]
            if process.alive and not handle.cancelled():
                return process, handle
        return None

    def next_ms(self) -> int | None:
        """Return when the next timer is due."""
        return self._timers[0][0] if self._timers else None

    def make_ready(self, now_ms: int) -> None:
        """Make the timers ready that are due, in the order of time."""
        while self._timers and self._timers[0][0] <= now_ms:
            _, _, process, handle = heapq.heappop(self._timers)
            self.add(process, handle)

    def clear(self) -> None:
        """Forget everything."""
        self._ready.clear()
        self._timers.clear()
