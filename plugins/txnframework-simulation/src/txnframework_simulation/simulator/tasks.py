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
        # Before asyncio's own part, which may ask for the hash and keep it.
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
"""A ``finally`` that awaits refuses to be closed; each attempt gets it past one such await."""


def close_abandoned(tasks: dict[Any, None], generators: Iterable[AsyncGenerator[Any, Any]]) -> None:
    """
    Close the coroutines of ``tasks``, which grows by what they start meanwhile, and what ``generators`` await.

    The loop takes nothing up any more, so whatever the ``finally`` blocks try comes to nothing.
    """
    while tasks:
        task, _ = tasks.popitem()
        _close(task.get_coro())
    for generator in generators:
        awaited = getattr(generator, "ag_await", None)
        if inspect.iscoroutine(awaited):
            _close(awaited)


def _close(coroutine: Any) -> None:
    """Close a coroutine from the inside out: one that awaits again where it is closed would leave the inner ones."""
    for _ in range(ATTEMPTS_MAX):
        innermost = _innermost(coroutine)
        with contextlib.suppress(Exception, asyncio.CancelledError, GeneratorExit):
            innermost.close()
        if innermost is coroutine and coroutine.cr_frame is None:
            return


def _innermost(coroutine: Any) -> Any:
    """Return the coroutine at the end of a chain of awaits that is not over."""
    while inspect.iscoroutine(inner := coroutine.cr_await) and inner.cr_frame is not None:
        coroutine = inner
    return coroutine
