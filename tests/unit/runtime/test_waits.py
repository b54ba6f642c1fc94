"""Waits for external events while the event loop is blocked."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.runtime.waits import is_done_within
from txnframework.testing.clock import run_ready

LIMIT_S = 3_600.0


@pytest.mark.parametrize(("held_up_s", "waits_again"), [(0.0, False), (LIMIT_S, True)])
async def test_a_timer_that_fires_late(monkeypatch: pytest.MonkeyPatch, held_up_s: float, waits_again: bool) -> None:
    """If the timer fires late, the wait is repeated once; if it fires in time, the wait ends."""
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now_s)
    future: asyncio.Future[None] = loop.create_future()
    waiting = asyncio.ensure_future(is_done_within(future, LIMIT_S))
    await run_ready()
    now_s += LIMIT_S + held_up_s
    await run_ready()
    assert waiting.done() is not waits_again
    now_s += LIMIT_S + held_up_s
    await run_ready()
    assert waiting.result() is False
    assert not future.done()


async def test_what_happens_in_the_second_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that is read after the loop was blocked counts."""
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now_s)
    future: asyncio.Future[None] = loop.create_future()
    waiting = asyncio.ensure_future(is_done_within(future, LIMIT_S))
    await run_ready()
    now_s += 2 * LIMIT_S
    await run_ready()
    future.set_result(None)
    assert await waiting is True
