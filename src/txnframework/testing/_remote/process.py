"""The process of a client, as seen by its test."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from itertools import count
from typing import Any

from txnframework.errors import Closed
from txnframework.testing._remote.child import run_client
from txnframework.testing._remote.frames import HARNESS, Call, Cancel, Frames, Leave, Opening, Reference, Reply
from txnframework.testing._remote.proxies import proxy_of
from txnframework.testing.clock import VirtualEnvironment

_END_SECONDS_MAX = 10
"""Seconds that a process may take to end after it has closed everything."""


class ClientProcess:
    """
    One child process and the calls that are made in it.

    ``now_ms`` is the last known time of its clock; ``asked`` counts the calls of its objects, without those of the
    harness.
    """

    def __init__(self, process: Any, frames: Frames, environment: VirtualEnvironment) -> None:
        self.now_ms = environment.now_ms()
        self.was_killed = False
        self.asked = 0
        self._process = process
        self._frames = frames
        self._environment = environment
        self._numbers = count()
        self._calls: dict[int | None, asyncio.Future[Any]] = {}
        self._has_ended = False
        self._opened = self._expect(None)
        self._receiving = asyncio.create_task(self._receive())

    @classmethod
    async def start(cls, opening: Opening, preload: tuple[str, ...], environment: VirtualEnvironment) -> ClientProcess:
        """Start a process; children are forked from one server that has imported the modules in ``preload``."""
        # A fork of this process would inherit locks held by its threads; a fork of a fresh server process inherits
        # none.
        has_server = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if has_server else "spawn")
        if has_server:
            context.set_forkserver_preload([run_client.__module__, *preload])
        own, of_child = socket.socketpair()
        with of_child:
            frames = Frames(*await asyncio.open_connection(sock=own))
            process = context.Process(target=run_client, args=(of_child, opening), daemon=True)
            try:
                process.start()
            except BaseException:
                await frames.close()
                raise
        return cls(process, frames, environment)

    async def opened(self) -> Any:
        """Return a proxy for the opened client; raise the error of the opening if it failed."""
        return await self._opened

    def begin(self, number: int, method: str, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        """
        Start a call of object ``number`` there; cancelling the future cancels the call.

        The result of the future is a pair: the value that the call returned, and the object's attributes at that time.
        """
        call = next(self._numbers)
        self.asked += number != HARNESS
        future = self._expect(call)
        if not future.done():
            self._frames.send(Call(call, number, method, arguments, self._environment.now_ms()))
            future.add_done_callback(lambda done: self._cancel(call) if done.cancelled() else None)
        return future

    async def leave(self) -> None:
        """Let the process close its client and end; raise the error of the closing. Does nothing after ``kill``."""
        if not self.was_killed:
            left = self._expect(None)
            self._frames.send(Leave())
            await left
            self._process.join(_END_SECONDS_MAX)

    def kill(self) -> None:
        """Kill the process, with all its state."""
        self.was_killed = True
        self._process.kill()
        self._process.join()

    async def end(self) -> None:
        """Kill and reap the process, and close the connection to it."""
        self._process.kill()
        self._process.join()
        self._process.close()
        try:
            await self._receiving
        finally:
            await self._frames.close()

    def _expect(self, call: int | None) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # The exception of a future without a waiter is retrieved here, so that asyncio does not log it.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._calls[call] = future
        if self._has_ended:
            self._fail_rest()
        return future

    def _cancel(self, call: int) -> None:
        if self._calls.pop(call, None) is not None:
            self._frames.send(Cancel(call))

    async def _receive(self) -> None:
        try:
            while (reply := await self._frames.receive()) is not None:
                assert isinstance(reply, Reply)
                self.now_ms = max(self.now_ms, reply.now_ms)
                self._answer(reply)
        finally:
            self._has_ended = True
            self._fail_rest()

    def _answer(self, reply: Reply) -> None:
        future = self._calls.pop(reply.call, None)
        if future is None or future.done():
            return
        if reply.error is not None:
            future.set_exception(reply.error)
        else:
            value = proxy_of(self, reply.value) if isinstance(reply.value, Reference) else reply.value
            future.set_result(value if reply.call is None else (value, reply.facts))

    def _fail_rest(self) -> None:
        """Fail all unanswered calls, because the process has ended."""
        calls, self._calls = self._calls, {}
        for call, future in calls.items():
            if not future.done():
                what = "the client's process has ended"
                future.set_exception(RuntimeError(f"{what} by itself") if call is None else Closed(what))
