"""An event loop in a thread of its own, for synchronous programs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, ClassVar, TypeVar

from txnframework.runtime.calling_thread import CallingThread, set_calling_thread
from txnframework.runtime.tasks import start_task

T = TypeVar("T")


class LoopThread:
    """
    Runs coroutines from any thread in one event loop.

    ``shared`` returns the loop thread of this process. It is created on first use, and again after a fork, because
    threads do not survive a fork. Objects that were opened in the parent's loop belong to the parent. Some stores, such
    as SQLite files, cannot be opened in a child process while the parent has them open. So fork before opening, or
    start processes by spawn or exec.
    """

    _shared: ClassVar[LoopThread | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="txnframework", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> LoopThread:
        """Return this process's loop thread."""
        with cls._lock:
            if cls._shared is None or not cls._shared.alive:
                cls._shared = LoopThread()
            return cls._shared

    @property
    def alive(self) -> bool:
        """Whether the thread is running in this process."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """
        Run a coroutine to its end, and return its result or raise its error.

        If the waiting thread is interrupted, the coroutine is cancelled and its end is awaited, so that nothing
        continues in the background. Meanwhile the waiting thread executes the calls that the coroutine makes by
        ``in_calling_thread``.

        :raises RuntimeError: the caller runs in the loop itself, which would deadlock, or the process was forked.
        """
        if not self.alive or threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a loop thread cannot be used from its own loop, nor in a process that was forked off")
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        running: list[asyncio.Task[T]] = []
        here = CallingThread()

        def begin() -> None:
            context = copy_context()
            context.run(set_calling_thread, here)
            task = start_task(coroutine, context=context)
            running.append(task)
            task.add_done_callback(lambda ended: _hand_over(ended, done))

        self._loop.call_soon_threadsafe(begin)
        try:
            here.serve(done)
            return done.result()
        except BaseException:
            if not done.done():
                self._loop.call_soon_threadsafe(lambda: running[0].cancel())
                here.serve(done)
            raise
        finally:
            here.end()

    def stop(self) -> None:
        """Stop the loop and the thread; for tests, and for programs that created their own."""
        if self.alive:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def _hand_over(task: asyncio.Task[T], done: concurrent.futures.Future[T]) -> None:
    """Pass the outcome of a task to the thread that waits for it."""
    if task.cancelled():
        done.cancel()
        done.set_running_or_notify_cancel()  # only this call wakes the waiting thread
        return
    error = task.exception()
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


def _forget_shared() -> None:
    # Another thread of the parent may have held the lock at the time of the fork.
    LoopThread._lock = threading.Lock()
    LoopThread._shared = None


os.register_at_fork(after_in_child=_forget_shared)
