"""Simulated processes, and the schedule that decides which of them runs next."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from itertools import count
from types import CodeType, FrameType
from typing import Any, TypeVar

T = TypeVar("T")

FRAMES_SHOWN = 3

_current: ContextVar[Process | None] = ContextVar("txnframework-simulated-process", default=None)


class Process:
    """
    One process of a simulation. Everything that is started in it belongs to it, directly or indirectly.

    ``steps`` is the number of its callbacks that were run. After ``kill`` none of its code runs: no callback, no
    ``finally``, no cancellation, as after kill -9. While ``frozen``, it takes no step.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = 0
        self.alive = True
        self.frozen = False
        self.last_step: str = ""
        """The task that ran last, and its current awaits."""
        self._last: object = None

    def spawn(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[T]:
        """Start a task in this process."""
        context = copy_context()
        context.run(_current.set, self)
        return loop.create_task(work, context=context)

    def kill(self) -> None:
        """Stop permanently; the caller ends the sessions and connections of the process."""
        self.last_step = self.describe_last_step()
        self.alive = False

    def stepped(self, callback: object) -> None:
        """Note that one callback of the process was run."""
        self.steps += 1
        self._last = callback

    def describe_last_step(self) -> str:
        """Return the task that ran last, and its current awaits."""
        task = getattr(self._last, "__self__", None)
        return where(task) if isinstance(task, asyncio.Task) else repr(self._last)

    def __repr__(self) -> str:
        return f"<Process {self.name}, {self.steps} steps{'' if self.alive else ', killed'}>"


def process_of(context: Context | None = None) -> Process | None:
    """Return the process that a context belongs to, by default the one that runs now."""
    return _current.get() if context is None else context.get(_current)


def where(task: asyncio.Task[Any]) -> str:
    """Return a task's name and its innermost awaits, outermost first."""
    if task.done():
        return f"{task.get_name()}: finished"
    lines = [f"{_file(code)}:{frame.f_lineno} {code.co_qualname}" for frame, code in _awaits(task.get_coro())]
    return f"{task.get_name()}: {' > '.join(lines[-FRAMES_SHOWN:]) or 'not begun'}"


def _awaits(awaited: Any) -> Iterator[tuple[FrameType, CodeType]]:
    """Yield the frames of a chain of awaits, as far as Python shows them, without asyncio's own frames."""
    while awaited is not None:
        for frame_name, next_name in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
            if hasattr(awaited, frame_name):
                frame: FrameType | None = getattr(awaited, frame_name)
                if frame is not None and "/asyncio/" not in frame.f_code.co_filename:
                    yield frame, frame.f_code
                awaited = getattr(awaited, next_name)
                break
        else:
            return


def _file(code: CodeType) -> str:
    parts = code.co_filename.split("/")
    return "/".join(parts[-2:])


class Schedule:
    """
    Callbacks that are ready, in order within each process, and timers.

    The next process is drawn from the seed. Callbacks of a killed process are never returned.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._ready: dict[Process, deque[asyncio.Handle]] = {}
        self._timers: list[tuple[int, int, Process, asyncio.TimerHandle]] = []
        self._order = count()

    def add(self, process: Process, handle: asyncio.Handle) -> None:
        """Make a callback ready, after the callbacks that are ready in its process."""
        if process.alive:
            self._ready.setdefault(process, deque()).append(handle)

    def add_timer(self, due_ms: int, process: Process, handle: asyncio.TimerHandle) -> None:
        """Make a callback ready at ``due_ms``."""
        heapq.heappush(self._timers, (due_ms, next(self._order), process, handle))

    def take(self) -> tuple[Process, asyncio.Handle] | None:
        """
        Return the next callback.

        None: no callback is ready.
        """
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
