"""Work that is started and stopped, and work that runs until its store is closed."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import Closed, Unavailable
from txnframework.runtime.tasks import RESTART_DELAY_MS, BackgroundTask, repeat_until_closed
from txnframework.testing.clock import VirtualEnvironment, run_ready


async def test_work_is_begun_once_and_waited_for_when_it_is_stopped() -> None:
    """A second start changes nothing; a stop cancels and waits; stopped work can be started again."""
    begun, ended = 0, 0

    async def work() -> None:
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    ongoing = BackgroundTask(work)
    await ongoing.stop()
    assert not ongoing.started
    for times in (1, 2):
        ongoing.start()
        ongoing.start()
        await run_ready()
        assert (begun, ended, ongoing.started) == (times, times - 1, True)
        await ongoing.stop()
        assert (begun, ended, ongoing.started) == (times, times, False)


async def test_work_goes_on_after_errors_that_pass() -> None:
    """Work is repeated at once after success, after a delay on failure, and not after its store is closed."""
    clock = VirtualEnvironment()
    outcomes = [None, Unavailable("away"), None, Closed("closed")]
    left = list(outcomes)

    async def work() -> None:
        outcome = left.pop(0)
        if outcome is not None:
            raise outcome

    task = asyncio.ensure_future(repeat_until_closed(work, clock))
    await run_ready()
    assert len(left) == 2
    await clock.advance(RESTART_DELAY_MS // 2 - 1)
    assert len(left) == 2
    await clock.advance(RESTART_DELAY_MS - RESTART_DELAY_MS // 2 + 1)
    await task
    assert not left


def test_a_defect_ends_the_work() -> None:
    """A repetition would hide the defect."""

    async def work() -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        asyncio.run(repeat_until_closed(work, VirtualEnvironment()))
