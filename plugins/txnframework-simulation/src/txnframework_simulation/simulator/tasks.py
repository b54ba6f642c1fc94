"""Tasks and futures with a deterministic order, and the cleanup of abandoned coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable
from contextvars import Context
from typing import Any, TypeVar

from txnframework_simulation.simulator.schedule import Process

T = TypeVar("T")


class SimulatedFuture(asyncio.Future[T]):
    """A future of one process."""

    def __init__(self, number: int, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        # Set before asyncio's constructor, which may read the hash and keep it.
        self._number = number
        self.process = process
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimulatedTask(asyncio.Task[T]):
    """A task of one process."""

    def __init__(
        self,
        coroutine: Generator[Any, None, T] | Coroutine[Any, Any, T],
        number: int,
        process: Process,
        loop: asyncio.AbstractEventLoop,
        name: str,
        context: Context | None,
    ) -> None:
        self._number = number
        self.process = process
        super().__init__(coroutine, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


ATTEMPTS_MAX = 1_000
"""
The maximum number of attempts to close a coroutine.

A ``finally`` block that awaits needs one attempt for each await.
"""


def close_abandoned(tasks: dict[Any, None], generators: Iterable[AsyncGenerator[Any, Any]]) -> None:
    """
    Close the coroutines of ``tasks`` and those that ``generators`` await. ``tasks`` grows if a coroutine starts a task.

    The loop accepts no work any more, so the actions of ``finally`` blocks have no effect.
    """
    while tasks:
        task, _ = tasks.popitem()
        _close(task.get_coro())
    for generator in generators:
        awaited = getattr(generator, "ag_await", None)
        if inspect.iscoroutine(awaited):
            _close(awaited)


def _close(coroutine: Any) -> None:
    """
    Close a chain of coroutines, the innermost first.

    If an outer coroutine was closed first and awaited again, the inner ones would stay open.
    """
    for _ in range(ATTEMPTS_MAX):
        if not inspect.iscoroutine(coroutine):
            # An object with the methods of a coroutine, such as what opens a producer; it shows nothing of its inside.
            with contextlib.suppress(RuntimeError):  # a ``finally`` block awaits
                coroutine.close()
                return
            continue
        innermost = _innermost(coroutine)
        with contextlib.suppress(Exception, asyncio.CancelledError, GeneratorExit):
            innermost.close()
        if innermost is coroutine and coroutine.cr_frame is None:
            return


def _innermost(coroutine: Any) -> Any:
    """Return the innermost unfinished coroutine of a chain of awaits."""
    while inspect.iscoroutine(inner := coroutine.cr_await) and inner.cr_frame is not None:
        coroutine = inner
    return coroutine
