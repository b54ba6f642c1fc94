"""Steps that a host completes, even if their callers are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from contextvars import ContextVar
from itertools import count
from typing import Any, TypeVar

from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError
from txnframework.runtime.deadline import Deadline
from txnframework.runtime.tasks import first_completed, start_task, until_ended

T = TypeVar("T")

Work = Callable[[], Awaitable[T]]
Undo = Callable[[T], Awaitable[object]]

_numbers = count()
Path = tuple[int, ...]
"""The numbers of the enclosing steps, the outermost first, then the step's own number."""

_within: ContextVar[Path] = ContextVar("txnframework-steps", default=())
"""The enclosing steps of the running code. Waiting for one of them here would be a deadlock."""


class Steps:
    """
    Runs steps with side effects as tasks of the host, so that a cancelled caller leaves nothing half done.

    A cancelled caller returns immediately. Its step is *abandoned*: the host completes the step or, if an undo was
    given, undoes its result. A step waits for earlier abandoned steps that share a key with it, so abandoned steps keep
    their order. A nested step has the place of its outer step. It does not wait for steps that began after the outer
    step, because these may wait for the outer step.

    An abandoned step that fails with an error of the framework leaves the same state as a crash at that point. Any
    other exception is a defect, and goes to the loop's exception handler.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._running: dict[asyncio.Task[Any], Path] = {}
        self._undoable: set[asyncio.Task[Any]] = set()
        self._abandoned: dict[asyncio.Task[Any], frozenset[Hashable]] = {}

    async def finish(self, work: Work[T], keys: Iterable[Hashable] = (), undo: Undo[T] | None = None) -> T:
        """
        Run ``work`` to its end, even if the caller is cancelled, and return its result.

        :param keys: the objects that the step changes.
        :param undo: called with the result if the caller was cancelled before it received the result.
        :raises Closed: the host was closed and cancelled the step.
        """
        about = frozenset(keys)
        step = self._start(self._in_turn(work, self._before(about) if self._abandoned else []))
        if undo is not None:
            self._undoable.add(step)
            step.add_done_callback(self._undoable.discard)
        return await self.end_of(step, about, undo)

    def begin(self, work: Work[T], keys: Iterable[Hashable] = ()) -> asyncio.Task[T]:
        """Start a step; ``end_of`` waits for it."""
        return self._start(self._in_turn(work, self._before(keys) if self._abandoned else []))

    async def end_of(self, step: asyncio.Task[T], keys: Iterable[Hashable] = (), undo: Undo[T] | None = None) -> T:
        """Wait for a step of ``begin`` and return its result; parameters and errors are those of ``finish``."""
        try:
            await until_ended(step)
        except asyncio.CancelledError:
            self._abandon(step, frozenset(keys))
            if undo is not None:
                self._abandon(self._start(_undo(step, undo)), frozenset(keys))
            raise
        if step.cancelled():
            raise Closed("the client was closed before this call completed")
        return step.result()

    def leave(self, work: Work[object], keys: Iterable[Hashable] = ()) -> None:
        """Start a step without a caller: it is abandoned from the beginning."""
        about = frozenset(keys)
        self._abandon(self.begin(work, about), about)

    async def abandoned_ended(self, keys: Iterable[Hashable]) -> None:
        """Wait for the abandoned steps that share one of these keys."""
        before = self._before(keys)
        if before:
            await asyncio.wait(before)

    async def close(self, timeout_ms: int) -> None:
        """
        Wait at most ``timeout_ms`` for all steps, cancel the rest, and wait for their end.

        Steps with an undo are cancelled immediately: their callers no longer need the results.
        """
        for task in self._undoable.intersection(self._others()):
            task.cancel()
        deadline = Deadline(self._environment, timeout_ms)
        while (running := self._others()) and deadline.left_ms:
            await first_completed(asyncio.wait(running), deadline.passed())
        while running := self._others():
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def _others(self) -> tuple[asyncio.Task[Any], ...]:
        """Return all running steps except the enclosing ones."""
        within = _within.get()
        return tuple(task for task, path in self._running.items() if path[-1] not in within)

    def _before(self, keys: Iterable[Hashable]) -> list[asyncio.Task[Any]]:
        if not self._abandoned:
            return []
        wanted, here = frozenset(keys), self._here()
        return [task for task, its in self._abandoned.items() if its & wanted and _is_before(self._running[task], here)]

    def _here(self) -> Path:
        """Return the enclosing steps that have not ended."""
        within = _within.get()
        running = {path[-1] for path in self._running.values()} if within else ()
        return tuple(number for number in within if number in running)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        here = self._here() if _within.get() else ()
        path = (*here, next(_numbers))
        outside = _within.set(path)
        task = start_task(work)  # with a copy of the present context
        _within.reset(outside)
        self._running[task] = path
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if self._abandoned.pop(task, None) is not None:
            _look_at(task)

    def _abandon(self, task: asyncio.Task[Any], keys: frozenset[Hashable]) -> None:
        if task.done():
            _look_at(task)
        elif task not in self._abandoned:
            self._abandoned[task] = keys

    async def _in_turn(self, work: Work[T], before: list[asyncio.Task[Any]]) -> T:
        if before:
            await asyncio.wait(before)
        return await work()


def _is_before(other: Path, here: Path) -> bool:
    """
    Return whether a step that starts here may wait for ``other``: an earlier step that does not enclose it.

    Each step waits only for earlier steps in the order of paths, so waiting steps cannot form a cycle.
    """
    return other[-1] not in here and other[: len(here)] <= here


async def _undo(step: asyncio.Task[T], undo: Undo[T]) -> None:
    await asyncio.wait({step})
    if not step.cancelled() and step.exception() is None:
        await undo(step.result())


def _look_at(task: asyncio.Task[Any]) -> None:
    """Read the exception of a step without a caller; report a defect to the loop."""
    if task.cancelled():
        return
    error = task.exception()
    if error is not None and not isinstance(error, TxnFrameworkError):
        task.get_loop().call_exception_handler({"message": "a step of the host failed", "exception": error})
