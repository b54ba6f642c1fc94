"""Calls that must run in the thread that waits for a coroutine, such as those of a connection bound to its thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from txnframework.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")

_Call = tuple[Callable[[], Any], concurrent.futures.Future[Any]]


class CallingThread:
    """
    The thread that waits for a coroutine of another thread's loop, and executes the calls that the coroutine posts.

    ``serve`` and ``end`` run in the waiting thread. ``execute`` runs in the loop.
    """

    def __init__(self) -> None:
        # The call that is being executed stays first, so that an interrupt between two steps loses no call.
        self._calls: deque[_Call] = deque()
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended = False

    def serve(self, done: concurrent.futures.Future[Any]) -> None:
        """
        Execute posted calls until ``done`` is done; an interrupt is raised immediately, and serving may be repeated.

        A call that was interrupted is not executed again: its outcome is unknown.
        """
        done.add_done_callback(lambda _: self._woken.put(None))
        while True:
            while self._calls:
                _execute(*self._calls[0])
                self._calls.popleft()
            if done.done():
                return
            self._woken.get()

    def end(self) -> None:
        """Serve no more: calls that did not begin, and later calls, raise Unavailable."""
        self._ended = True
        while self._calls:
            try:
                _, result = self._calls.popleft()
            except IndexError:  # the loop has taken the last one
                return
            if not result.done():
                result.set_exception(_interrupted() if result.running() else _left())

    async def execute(self, call: Callable[[], T]) -> T:
        """
        Return the result of ``call``, executed in the waiting thread.

        If the caller is cancelled, the call is still executed.

        :raises Unavailable: the thread does not wait any more; the call was not executed.
        :raises OutcomeUnknown: the thread was interrupted within the call.
        """
        result: concurrent.futures.Future[T] = concurrent.futures.Future()
        answer = asyncio.wrap_future(result)
        # If the caller was cancelled, only this reads the result.
        answer.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        self._calls.append((call, result))
        self._woken.put(None)
        if self._ended:  # no thread looks at the calls any more
            self.end()
        await asyncio.wait({answer})
        return answer.result()


_serving: ContextVar[CallingThread | None] = ContextVar("txnframework-calling-thread", default=None)
"""The thread that waits for the running code; steps that the code starts inherit it."""


def set_calling_thread(thread: CallingThread) -> None:
    """Make ``thread`` execute the calls of the running task and of the tasks that it starts."""
    _serving.set(thread)


async def in_calling_thread(call: Callable[[], T]) -> T:
    """
    Return the result of a blocking call, executed where the application's connections belong.

    Below the blocking facade this is the thread of the application, which waits for the loop thread. In an asyncio
    program it is the loop's own thread: the call blocks the loop, as the application's own calls of this connection do.

    :raises Unavailable: the application's thread does not wait any more; the call was not executed.
    :raises OutcomeUnknown: the application's thread was interrupted within the call.
    """
    thread = _serving.get()
    return call() if thread is None else await thread.execute(call)


def _execute(call: Callable[[], Any], result: concurrent.futures.Future[Any]) -> None:
    if result.done():
        return
    if result.running():
        result.set_exception(_interrupted())
        return
    result.set_running_or_notify_cancel()
    try:
        value = call()
    except Exception as error:
        result.set_exception(error)
    else:
        result.set_result(value)


def _interrupted() -> OutcomeUnknown:
    return OutcomeUnknown("the thread of the application was interrupted within the call")


def _left() -> Unavailable:
    return Unavailable("the thread of the application does not wait for this call any more")
