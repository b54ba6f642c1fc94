from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from txnframework.client import LoopThread
from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.runtime.calling_thread import in_calling_thread


def test_coroutines_of_any_thread_run_in_its_loop() -> None:
    """Results and errors are returned; after the stop, calls are refused."""
    loop = LoopThread()

    async def name() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise LookupError("mine")

    assert loop.run(name()) == "txnframework"
    with pytest.raises(LookupError, match="mine"):
        loop.run(fail())
    loop.stop()
    with pytest.raises(RuntimeError):
        loop.run(name())


def test_an_interrupt_cancels_and_waits() -> None:
    """After the interrupt, nothing continues in the background."""
    loop = LoopThread()
    ended = threading.Event()

    async def long() -> None:
        try:
            with suppress(OutcomeUnknown):
                await in_calling_thread(interrupt)
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        loop.run(long())
    assert ended.is_set()
    loop.stop()


def interrupt() -> None:
    """Do what the signal handler does that a person at the keyboard causes."""
    raise KeyboardInterrupt


def test_calls_run_in_the_thread_that_waits() -> None:
    """A connection that belongs to the caller's thread is used there; its results and errors reach the coroutine."""
    loop = LoopThread()
    here = threading.get_ident()

    def fail() -> None:
        raise LookupError(threading.get_ident())

    async def work() -> None:
        assert threading.get_ident() != here
        assert await in_calling_thread(threading.get_ident) == here
        assert await asyncio.create_task(in_calling_thread(threading.get_ident)) == here
        with pytest.raises(LookupError, match=str(here)):
            await in_calling_thread(fail)

    loop.run(work())
    loop.stop()


def test_an_interrupted_call_is_not_executed_again_and_the_next_one_is() -> None:
    """The coroutine learns that the outcome is unknown, and can still undo what it did: the thread waits for it."""
    loop = LoopThread()
    calls: list[str] = []
    learned: list[str] = []

    def commit() -> None:
        calls.append("commit")
        raise KeyboardInterrupt

    async def work() -> None:
        never = asyncio.get_running_loop().create_future()
        committing = asyncio.create_task(in_calling_thread(commit))
        with suppress(asyncio.CancelledError):
            await asyncio.wait({committing, never})
        try:
            await committing
        except OutcomeUnknown:
            learned.append("unknown")
        await in_calling_thread(lambda: calls.append("rollback"))

    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert (calls, learned) == (["commit", "rollback"], ["unknown"])
    loop.stop()


def test_a_call_after_the_thread_has_left_is_refused() -> None:
    """Work that continues in the loop cannot use the caller's thread any more."""
    loop = LoopThread()
    left = threading.Event()
    later: list[asyncio.Task[int]] = []

    async def behind() -> int:
        await asyncio.to_thread(left.wait)
        return await in_calling_thread(threading.get_ident)

    async def begin() -> None:
        later.append(asyncio.create_task(behind()))

    async def end() -> None:
        with pytest.raises(Unavailable, match="does not wait"):
            await later[0]

    loop.run(begin())
    left.set()
    loop.run(end())
    loop.stop()


def test_without_such_a_thread_a_call_runs_at_once() -> None:
    """In an asyncio program the loop's own thread makes the call."""
    assert asyncio.run(in_calling_thread(threading.get_ident)) == threading.get_ident()
