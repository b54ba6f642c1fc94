"""An event loop without threads, I/O or a clock of its own: a seed decides the order of steps."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack
from weakref import WeakSet

from txnframework.testing.clock import VirtualEnvironment
from txnframework_simulation.simulator.isolation import IsolatedLoop, isolated
from txnframework_simulation.simulator.schedule import Process, Schedule, process_of, where
from txnframework_simulation.simulator.tasks import SimulatedFuture, SimulatedTask, close_abandoned

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX = 1_000_000
"""The maximum number of steps of one call, so that an endless loop fails."""
EVER_MS = 10**15
"""Longer than any sleep."""
ROUNDING_MS = 0.001
"""Seconds of asyncio are fractions; a timer that is due up to this much later is due."""


class Stuck(AssertionError):
    """The awaited event did not happen in time, or cannot happen any more."""


class SimulatedLoop(IsolatedLoop):
    """
    Runs one callback after the other, in virtual time.

    The callbacks of one process run in the order in which they became ready, as asyncio promises. The seed draws the
    process of each step. ``pause`` lets other tasks of the same process run first: stores await it where a real one
    would wait for the network. Virtual time passes only when nothing is ready.

    Callbacks without a process belong to ``outside``, the process of the test. Unhandled errors (an exception of a
    task that was never retrieved, a callback that raised) are collected in ``reports``.
    """

    def __init__(self, environment: VirtualEnvironment | None = None, seed: int = 0) -> None:
        self.environment = environment or VirtualEnvironment(seed)
        self.outside = Process("outside")
        self.steps = 0
        self.reports: list[dict[str, Any]] = []
        self._schedule = Schedule(seed)
        self._pauses = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._numbers = count(1)
        # Strong references, because a coroutine that is collected as garbage runs its ``finally`` blocks.
        self._tasks: dict[SimulatedTask[Any], None] = {}
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._is_running = False
        self._stopping = False
        self._closed = False
        self._debug = False

    # -- processes ------------------------------------------------------------------------------------

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task in a process."""
        return process.spawn(work, self)

    async def pause(self, rounds_max: int = 3) -> None:
        """Let other tasks run first, for a number of rounds drawn from the seed."""
        for _ in range(self._pauses.randint(1, rounds_max)):
            await asyncio.sleep(0)

    # -- driving --------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run one ready callback; False: nothing is ready until time passes."""
        with self._running():
            return self._step()

    def run_until(self, happened: Callable[[], bool], within_ms: int = 600_000) -> None:
        """
        Run until ``happened`` returns True. Time passes only when no callback is ready.

        :raises Stuck: it did not happen in ``within_ms``, or cannot happen any more.
        """
        end_ms = self.environment.now_ms() + within_ms
        with self._running():
            for _ in range(STEPS_MAX):
                if happened():
                    return
                if not self._step() and not self._pass_time(end_ms):
                    raise Stuck(f"it did not happen in {within_ms} ms; {self._suspended_tasks()}")
        raise Stuck(f"it did not happen in {STEPS_MAX} steps; {self._suspended_tasks()}")

    def advance(self, by_ms: int) -> None:
        """Run all steps of the next ``by_ms`` milliseconds of virtual time."""
        end_ms = self.environment.now_ms() + by_ms
        with self._running():
            for _ in range(STEPS_MAX):
                if not self._step() and not self._pass_time(end_ms):
                    self.environment.move_to(end_ms)
                    return
        raise Stuck(f"{STEPS_MAX} steps were not enough; {self._suspended_tasks()}")

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until the future is done; return its result."""
        awaited: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        self.run_until(awaited.done, EVER_MS)
        return awaited.result()

    def run_forever(self) -> None:
        """Run until ``stop`` is called."""
        self._stopping = False
        self.run_until(lambda: self._stopping, EVER_MS)

    def stop(self) -> None:
        """Make ``run_forever`` return."""
        self._stopping = True

    def is_running(self) -> bool:
        """Whether a step is under way."""
        return self._is_running

    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def close(self) -> None:
        """
        Close all abandoned coroutines. Their errors are not reported, and their actions have no effect.

        Abandoned coroutines see an exception only now, because Python has no other way to release them. Inspect the
        state of the run before this call.
        """
        if self._closed:
            return
        with self._running():
            self._closed = True
            self._schedule.clear()
            close_abandoned(self._tasks, tuple(self._generators))

    async def shutdown_asyncgens(self) -> None:
        """Close the asynchronous generators that were not iterated to their end."""
        for generator in tuple(self._generators):
            await generator.aclose()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there are no threads."""

    # -- callbacks ------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return virtual time in seconds."""
        return self.environment.now_ms() / 1000

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback after those that are ready now in the calling process; a killed process runs none."""
        if context is None:
            context = copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self._schedule.add(process_of(context) or self.outside, handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run it ``delay`` seconds of virtual time from now."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run it when virtual time has reached ``when``."""
        if context is None:
            context = copy_context()
        process = process_of(context) or self.outside
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._closed:
            self._schedule.add_timer(math.ceil(when * 1000 - ROUNDING_MS), process, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return SimulatedFuture(next(self._numbers), process_of() or self.outside, self)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[T]:
        """Start a task in the process that calls, or in that of ``context``."""
        number = next(self._numbers)
        process = process_of(context) or self.outside
        task = SimulatedTask(coro, number, process, self, name or f"task {number}", context)
        self._tasks[task] = None
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect an unhandled error, unless its process was killed."""
        whose = context.get("task") or context.get("future")
        process = whose.process if isinstance(whose, SimulatedFuture | SimulatedTask) else process_of()
        if self._closed or not (process or self.outside).alive:
            return
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.reports.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect the error."""
        self.reports.append(context)

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        """Return the handler that was set."""
        return self._exception_handler

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        """Call ``handler`` for errors, instead of collecting them."""
        self._exception_handler = handler

    def set_task_factory(self, factory: object) -> None:
        """Refuse: tasks are made so that their order can be repeated."""
        if factory is not None:
            raise NotImplementedError("a simulated loop makes its own tasks")

    def get_task_factory(self) -> None:
        """Return None: there is no task factory."""

    def get_debug(self) -> bool:
        """Return the value of ``set_debug``."""
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        """Set the debug flag, which asyncio's tasks read."""
        self._debug = enabled

    # -- inside ---------------------------------------------------------------------------------------

    def _step(self) -> bool:
        taken = self._schedule.take()
        if taken is None:
            return False
        process, handle = taken
        callback = handle._callback  # type: ignore[attr-defined]
        handle._run()
        self.steps += 1
        process.stepped(callback)
        task = getattr(callback, "__self__", None)
        if isinstance(task, SimulatedTask) and task.done():
            self._tasks.pop(task, None)
        return True

    def _pass_time(self, end_ms: int) -> bool:
        """
        Advance time to the next timer.

        Return False if no timer is due until ``end_ms``.
        """
        both = (self._schedule.next_ms(), self.environment.next_ms())
        next_ms = min((at_ms for at_ms in both if at_ms is not None), default=None)
        if next_ms is None or next_ms > end_ms:
            return False
        self.environment.move_to(next_ms)
        self._schedule.make_ready(next_ms)
        return True

    def _suspended_tasks(self) -> str:
        standing = [f"{task.process.name}: {where(task)}" for task in self._tasks if task.process.alive]
        return "; ".join(standing) or "no task is left"

    @contextmanager
    def _running(self) -> Iterator[None]:
        if self._closed:
            raise RuntimeError("the loop was closed")
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("a simulated loop cannot run inside another loop")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._generators.add, self._finish_generator)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            with isolated():
                yield
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an unreferenced generator, unless its process was killed."""
        if not self._closed and self._is_running and (process_of() or self.outside).alive:
            self.create_task(generator.aclose())
