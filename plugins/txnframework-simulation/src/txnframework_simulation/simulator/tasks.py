"""Tasks and futures whose order in a set does not depend on where they lie in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

from txnframework_simulation.simulator.process import Process

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
