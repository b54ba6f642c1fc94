"""Running a handler without ``await``: in threads, with signals that stop it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, Literal, Unpack, overload

from txnframework import client as asynchronous
from txnframework.blocking._methods import ClosedByWith, called
from txnframework.blocking._transactions import Transaction
from txnframework.client import Message, PlannedSend
from txnframework.client._arguments import whole_number
from txnframework.client._content_types import T_co
from txnframework.client._handlers.handler_functions import HandlerFunction, Outgoing, handler_function
from txnframework.client._handlers.options import MESSAGES_MAX, RunOptions
from txnframework.client._handlers.signals import signals_of
from txnframework.errors import InvalidInput

THREADS_MAX = 1_000
"""The largest number of handlers that run at a time."""


class HandlerRuns(ClosedByWith[asynchronous.Consumer[T_co]], Generic[T_co]):
    """The part of a consumer that runs handlers; each handler runs in a thread of its own."""

    @overload
    def run(
        self,
        handler: Callable[[Message[T_co]], Outgoing],
        *,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

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
        handler: Callable[[Message[T_co], None], object] | Callable[[Message[T_co]], None],
        *,
        transactional: Literal[False],
        **options: Unpack[RunOptions],
    ) -> None: ...

    def run(
        self,
        handler: Callable[..., object],
        *,
        transactional: bool = True,
        **options: Unpack[RunOptions],
    ) -> None:
        """
        Call ``handler(message)`` or ``handler(message, txn)`` for each message; see ``txnframework.Consumer.run``.

        The handler may be a generator that yields what is to be sent.

        A thread cannot be cancelled. If its transaction was aborted, the next call of the handler with ``txn`` raises,
        and ``run`` waits for the handler's end. ``stop_on_signals`` needs the main thread.
        """
        function = handler_function(handler, takes_several=False, in_threads=True)
        self._run(self._asynchronous.run, function, options, transactional=transactional)

    @overload
    def run_batches(
        self,
        handler: Callable[[tuple[Message[T_co], ...]], Outgoing],
        *,
        messages_max: int = MESSAGES_MAX,
        transactional: Literal[True] = True,
        **options: Unpack[RunOptions],
    ) -> None: ...

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
        handler: Callable[[tuple[Message[T_co], ...], None], object] | Callable[[tuple[Message[T_co], ...]], None],
        *,
        messages_max: int = MESSAGES_MAX,
        transactional: Literal[False],
        **options: Unpack[RunOptions],
    ) -> None: ...

    def run_batches(
        self,
        handler: Callable[..., object],
        *,
        messages_max: int = MESSAGES_MAX,
        transactional: bool = True,
        **options: Unpack[RunOptions],
    ) -> None:
        """
        Call ``handler(messages)`` or ``handler(messages, txn)`` for up to ``messages_max`` messages at a time.

        Otherwise as ``run``.
        """
        function = handler_function(handler, takes_several=True, in_threads=True)
        self._run(
            self._asynchronous.run_batches, function, options, transactional=transactional, messages_max=messages_max
        )

    stop = called(asynchronous.Consumer.stop)

    def _run(
        self,
        run: Callable[..., Coroutine[Any, Any, None]],
        handler: HandlerFunction,
        options: RunOptions,
        **own: object,
    ) -> None:
        """Let an asynchronous consumer call the handler in threads, and wait for the threads in the end."""
        further = options.copy()
        signals = signals_of(further.pop("stop_on_signals", ()))
        # One thread for each handler: with fewer, a handler would wait while its transaction is open.
        at_once = whole_number(further.get("concurrency", 1), "concurrency", 1, THREADS_MAX)
        with _stopping_at(signals, self.stop), ThreadPoolExecutor(at_once, "txnframework-handler") as threads:

            def call(received: object, txn: asynchronous.Transaction | None) -> asyncio.Future[object]:
                given = None if txn is None else Transaction(self._loop, txn)
                return asyncio.get_running_loop().run_in_executor(threads, handler.function, received, given)

            def call_alone(received: object) -> asyncio.Future[tuple[PlannedSend, ...]]:
                # What a generator yields is collected in the thread, because its code runs then.
                return asyncio.get_running_loop().run_in_executor(
                    threads, lambda: handler.sends_of(handler.function(received))
                )

            self._loop.run(run(call if handler.takes_transaction else call_alone, **own, **further))


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
