"""Running a handler without ``await``: in threads, with signals that stop it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from txnframework import client as asynchronous
from txnframework.blocking._transactions import Transaction
from txnframework.client import LoopThread, Message
from txnframework.client._arguments import whole_number
from txnframework.client._content_types import T_co
from txnframework.client._handlers.handler_functions import check_handler
from txnframework.client._handlers.runs import MESSAGES_MAX, RunOptions
from txnframework.client._handlers.signals import signals_of
from txnframework.errors import InvalidInput

Received = TypeVar("Received")

THREADS_MAX = 1_000
"""The largest number of handlers that run at a time."""


class HandlerRuns(Generic[T_co]):
    """The part of a consumer that runs handlers; each handler runs in a thread of its own."""

    _loop: LoopThread
    _consumer: asynchronous.Consumer[T_co]

    @overload
    def run(
        self,
        handler: Callable[[Message[T_co], Transaction], object],
        *,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    def run(
        self,
        handler: Callable[[Message[T_co], None], object],
        *,
        transactional: Literal[False],
        **options: Unpack[RunOptions],
    ) -> None: ...

    def run(
        self,
        handler: Callable[[Message[T_co], Any], object],
        *,
        transactional: bool = True,
        **options: Unpack[RunOptions],
    ) -> None:
        """
        Call ``handler(message, txn)`` for each message in a transaction; see ``txnframework.Consumer.run``.

        A thread cannot be cancelled. If its transaction was aborted, the next call of the handler with ``txn`` raises,
        and ``run`` waits for the handler's end. ``stop_on_signals`` needs the main thread.
        """
        check_handler(handler, in_threads=True)
        with self._threads(options) as (call, further):
            consumer = self._consumer
            if transactional:
                self._loop.run(consumer.run(lambda message, txn: call(handler, message, txn), **further))
            else:
                self._loop.run(
                    consumer.run(lambda message, txn: call(handler, message, txn), transactional=False, **further)
                )

    @overload
    def run_batches(
        self,
        handler: Callable[[tuple[Message[T_co], ...], Transaction], object],
        *,
        messages_max: int = MESSAGES_MAX,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

    @overload
    def run_batches(
        self,
        handler: Callable[[tuple[Message[T_co], ...], None], object],
        *,
        messages_max: int = MESSAGES_MAX,
        transactional: Literal[False],
        **options: Unpack[RunOptions],
    ) -> None: ...

    def run_batches(
        self,
        handler: Callable[[tuple[Message[T_co], ...], Any], object],
        *,
        messages_max: int = MESSAGES_MAX,
        transactional: bool = True,
        **options: Unpack[RunOptions],
    ) -> None:
        """Call ``handler(messages, txn)`` for up to ``messages_max`` messages at a time; otherwise as ``run``."""
        check_handler(handler, in_threads=True)
        with self._threads(options) as (call, further):
            consumer = self._consumer
            if transactional:
                self._loop.run(
                    consumer.run_batches(
                        lambda messages, txn: call(handler, messages, txn), messages_max=messages_max, **further
                    )
                )
            else:
                self._loop.run(
                    consumer.run_batches(
                        lambda messages, txn: call(handler, messages, txn),
                        messages_max=messages_max,
                        transactional=False,
                        **further,
                    )
                )

    def stop(self) -> None:
        """Let ``run`` return when the running handlers have ended; from any thread, or from a handler."""

        async def stop() -> None:
            self._consumer.stop()

        self._loop.run(stop())

    @contextmanager
    def _threads(self, options: RunOptions) -> Iterator[tuple[Callable[..., asyncio.Future[object]], RunOptions]]:
        """Yield how to call a handler in a thread, and the options for the loop; wait for the threads in the end."""
        further = options.copy()
        signals = signals_of(further.pop("stop_on_signals", ()))
        # One thread for each handler: with fewer, a handler would wait while its transaction is open.
        at_once = whole_number(further.get("concurrency", 1), "concurrency", 1, THREADS_MAX)
        with _stopping_at(signals, self.stop), ThreadPoolExecutor(at_once, "txnframework-handler") as threads:

            def call(
                handler: Callable[[Received, Any], object], received: Received, txn: asynchronous.Transaction | None
            ) -> asyncio.Future[object]:
                given = None if txn is None else Transaction(self._loop, txn)
                return asyncio.get_running_loop().run_in_executor(threads, handler, received, given)

            yield call, further


@contextmanager
def _stopping_at(signals: Iterable[signal.Signals], stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at each of the signals; in the end, the earlier handlers are restored."""
    wanted = tuple(signals)
    if wanted and threading.current_thread() is not threading.main_thread():
        raise InvalidInput("stop_on_signals needs the main thread of a process")
    earlier = [(one, signal.signal(one, lambda *_: stop())) for one in wanted]
    try:
        yield
    finally:
        for one, handler in earlier:
            signal.signal(one, handler)
