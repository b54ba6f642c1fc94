"""Calls that wait for their turn, and are then performed together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from txnframework.errors import TxnFrameworkError
from txnframework.runtime.call_groups import copy_error
from txnframework.runtime.tasks import start_task

C = TypeVar("C")
T = TypeVar("T")


class CallBatches(Generic[C, T]):
    """
    Performs one group of calls after another; a group has the calls that have come when its turn begins.

    :param perform: returns for each call its result or its own error, or raises an error that applies to all.
    :param unwanted: called with a result whose caller was cancelled.
    :param together_max: the most calls of a group.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[C]], Awaitable[Sequence[T | TxnFrameworkError]]],
        unwanted: Callable[[T], None],
        together_max: int,
    ) -> None:
        self._perform = perform
        self._unwanted = unwanted
        self._together_max = together_max
        self._waiting: deque[tuple[C, asyncio.Future[T]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, call: C) -> T:
        """Perform a call, perhaps together with others; if its caller is cancelled, the others are not."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        if self._task is None:
            self._task = start_task(self._run())
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._unwanted(answer.result())
            raise

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken = [self._waiting.popleft() for _ in range(min(self._together_max, len(self._waiting)))]
                wanted = [one for one in taken if not one[1].done()]
                if wanted:
                    await self._answer(wanted)
        finally:
            self._task = None

    async def _answer(self, wanted: Sequence[tuple[C, asyncio.Future[T]]]) -> None:
        answers: Sequence[T | TxnFrameworkError]
        try:
            answers = await self._perform([call for call, _ in wanted])
        except TxnFrameworkError as error:
            answers = [copy_error(error, error.__cause__) for _ in wanted]
        except BaseException:
            # A defect, or the event loop is ending: no caller may wait forever.
            for _, future in (*wanted, *self._waiting):
                future.cancel()
            self._waiting.clear()
            raise
        for (_, future), answer in zip(wanted, answers, strict=True):
            if not isinstance(answer, TxnFrameworkError):
                if future.done():
                    self._unwanted(answer)
                else:
                    future.set_result(answer)
            elif not future.done():
                future.set_exception(answer)
