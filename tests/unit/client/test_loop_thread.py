from __future__ import annotations

import asyncio
import threading

import pytest

from txnframework.client import LoopThread


def test_coroutines_of_any_thread_run_in_its_loop() -> None:
    """Results and errors come back; after stopping it refuses."""
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


def test_an_interrupt_cancels_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the waiting thread is interrupted, nothing goes on behind its back."""
    loop = LoopThread()
    ended = threading.Event()
    started = threading.Event()

    async def long() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    import concurrent.futures

    def interrupted(self: concurrent.futures.Future[object], timeout: float | None = None) -> object:
        started.wait()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(concurrent.futures.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(long())
    assert ended.is_set()
    loop.stop()
