"""Time limits within one process, beside a clock that is set."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.environment import Environment, SystemEnvironment
from txnframework.plugin import AbortRetention
from txnframework.runtime.deadline import Deadline
from txnframework.runtime.steps import Steps
from txnframework.testing.clock import AdvanceableEnvironment, VirtualEnvironment, run_ready

HOUR_MS = 3_600_000
LIMIT_MS = 1_000


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
async def test_a_clock_that_is_set_does_not_change_a_deadline(by_ms: int) -> None:
    environment = VirtualEnvironment()
    deadline = Deadline(environment, LIMIT_MS)
    waiting = asyncio.ensure_future(deadline.passed())
    await environment.advance(1)
    environment.set_clock(by_ms)
    await environment.advance(LIMIT_MS - 2)
    assert (deadline.left_ms, waiting.done()) == (1, False)
    await environment.advance(1)
    assert (deadline.left_ms, waiting.done()) == (0, True)


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
async def test_steps_that_never_end_are_cancelled_in_time(by_ms: int) -> None:
    environment = VirtualEnvironment()
    steps = Steps(environment)
    steps.begin(asyncio.Event().wait)
    closing = asyncio.ensure_future(steps.close(LIMIT_MS))
    await run_ready()
    environment.set_clock(by_ms)
    await environment.advance(LIMIT_MS - 1)
    assert not closing.done()
    await environment.advance(1)
    await closing


async def test_a_missing_abort_record_is_conclusive_for_a_limited_time() -> None:
    """Also on a machine whose clock was set back: others delete the record by their own clocks."""
    environment = VirtualEnvironment()
    retention = AbortRetention(environment, LIMIT_MS)
    read_ms = retention.monotonic_ms()
    environment.set_clock(-HOUR_MS)
    await environment.advance(LIMIT_MS)
    assert not retention.is_over(read_ms)
    await environment.advance(1)
    assert retention.is_over(read_ms)


@pytest.mark.parametrize("environment", [SystemEnvironment(), AdvanceableEnvironment(), VirtualEnvironment()])
async def test_a_sleep_is_not_shorter_than_the_monotonic_clock_says(environment: Environment) -> None:
    began_ms = environment.monotonic_ms()
    sleeping = asyncio.ensure_future(Deadline(environment, 20).passed())
    await run_ready()
    if isinstance(environment, VirtualEnvironment):
        await environment.advance(20)
    await sleeping
    assert environment.monotonic_ms() - began_ms >= 20
