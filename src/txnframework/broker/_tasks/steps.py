"""Steps that a host brings to an end, whether or not their callers wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from contextvars import ContextVar, copy_context
from itertools import count
from typing import Any, TypeVar

from txnframework.broker._tasks.waiting import first_of
from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError

T = TypeVar("T")

Work = Callable[[], Awaitable[T]]
Undo = Callable[[T], Awaitable[object]]

_numbers = count()
Path = tuple[int, ...]
"""The numbers of the steps inside which a step was begun, the outermost first, and its own number."""

_within: ContextVar[Path] = ContextVar("txnframework-steps", default=())
"""The steps inside which this runs: none of them can be waited for here."""


class Steps:
    """
    Runs steps with consequences as tasks of the host, so that a caller that is cancelled leaves nothing half done.

    A cancelled caller is free at once. Its step is *abandoned*: the host finishes it or, where an undo was given,
    undoes what it led to. A step waits for the abandoned steps before it that have a key in common with it: what a
    caller began first, and gave up, happens first. A step inside another one comes where the outer one does: it does
    not wait for what was begun after that, which may be waiting for the outer one.

    An abandoned step that fails with an error of the framework leaves what a crash at that point would leave. Any
    other exception is a defect, and the loop's exception handler is told.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._running: dict[asyncio.Task[Any], Path] = {}
        self._undoable: set[asyncio.Task[Any]] = set()
        self._abandoned: dict[asyncio.Task[Any], frozenset[Hashable]] = {}

    async def finish(self, work: Work[T], keys: Iterable[Hashable] = (), undo: Undo[T] | None = None) -> T:
        """
        Return what ``work`` returns; it runs to its end although the caller is cancelled.

        :param keys: what it is about.
        :param undo: called with what the work returned, if the caller was cancelled and has not got it.
        :raises Closed: the host was closed, and gave the step up.
        """
        about = frozenset(keys)
        step = self.begin(work, about)
        if undo is not None:
            self._undoable.add(step)
            step.add_done_callback(self._undoable.discard)
        return await self.end_of(step, about, undo)

    def begin(self, work: Work[T], keys: Iterable[Hashable] = ()) -> asyncio.Task[T]:
        """Begin a step; ``end_of`` waits for it."""
        return self._start(self._in_turn(work, self._before(keys)))

    async def end_of(self, step: asyncio.Task[T], keys: Iterable[Hashable] = (), undo: Undo[T] | None = None) -> T:
        """Wait for a step that was begun, and return or raise what it did; ``finish`` explains the rest."""
        try:
            # Unlike a shield this tells nobody of a failure that the step's next caller is told of.
            await asyncio.wait({step})
        except asyncio.CancelledError:
            self._abandon(step, frozenset(keys))
            if undo is not None:
                self._abandon(self._start(_undo(step, undo)), frozenset(keys))
            raise
        if step.cancelled():
            raise Closed("the client was closed before this call came to its end")
        return step.result()

    def leave(self, work: Work[object], keys: Iterable[Hashable] = ()) -> None:
        """Begin a step for which nobody waits: an abandoned one from the beginning."""
        about = frozenset(keys)
        self._abandon(self.begin(work, about), about)

    async def abandoned_ended(self, keys: Iterable[Hashable]) -> None:
        """Wait for the abandoned steps that are about one of these."""
        before = self._before(keys)
        if before:
            await asyncio.wait(before)

    async def close(self, timeout_ms: int) -> None:
        """
        Wait for what was begun, at most so long; cancel the rest, and wait for that.

        What would be undone if nobody waited for it is not waited for: its callers have no use for it any more.
        """
        for task in self._undoable.intersection(self._others()):
            task.cancel()
        due_ms = self._environment.now_ms() + timeout_ms
        while (running := self._others()) and self._environment.now_ms() < due_ms:
            await first_of(asyncio.wait(running), self._environment.sleep_until(due_ms))
        while running := self._others():
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def _others(self) -> tuple[asyncio.Task[Any], ...]:
        """Return what is running, except the steps inside which this is asked."""
        within = _within.get()
        return tuple(task for task, path in self._running.items() if path[-1] not in within)

    def _before(self, keys: Iterable[Hashable]) -> list[asyncio.Task[Any]]:
        wanted, here = frozenset(keys), self._here()
        return [task for task, its in self._abandoned.items() if its & wanted and _is_before(self._running[task], here)]

    def _here(self) -> Path:
        """Return the steps inside which this is asked, without those that have ended."""
        running = {path[-1] for path in self._running.values()}
        return tuple(number for number in _within.get() if number in running)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        context, path = copy_context(), (*self._here(), next(_numbers))
        context.run(_within.set, path)
        task = asyncio.get_running_loop().create_task(work, context=context)
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
    Return whether what is begun here may wait for another step: one that came before, and that this is not inside of.

    In the order of paths each step waits for earlier ones only, so that none of them wait for each other in a circle.
    """
    return other[-1] not in here and other[: len(here)] <= here


async def _undo(step: asyncio.Task[T], undo: Undo[T]) -> None:
    await asyncio.wait({step})
    if not step.cancelled() and step.exception() is None:
        await undo(step.result())


def _look_at(task: asyncio.Task[Any]) -> None:
    """Fetch the exception of a step that no caller is told of; report a defect."""
    if task.cancelled():
        return
    error = task.exception()
    if error is not None and not isinstance(error, TxnFrameworkError):
        task.get_loop().call_exception_handler({"message": "a step that was begun failed", "exception": error})
