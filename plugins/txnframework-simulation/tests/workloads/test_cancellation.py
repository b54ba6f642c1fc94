"""Callers that cancel: their calls are cancelled midway, and raise CancelledError."""

from __future__ import annotations

import asyncio
import random

import pytest

from txnframework.errors import TxnFrameworkError
from txnframework.testing.clock import VirtualEnvironment
from txnframework_simulation.history import EventKind, classify_error
from txnframework_simulation.simulator.loop import SimulatedLoop
from txnframework_simulation.workloads.cancellation import CallerCancelled, Cancellation

CALLS = 50


@pytest.mark.parametrize(("cancels", "given_up"), [(0.0, 0), (1.0, CALLS)])
def test_calls_are_given_up_in_the_middle(cancels: float, given_up: int) -> None:
    """Each call has begun, and ends where it is; nothing of it goes on."""
    loop = SimulatedLoop(VirtualEnvironment(1), 1)
    begun: list[int] = []
    ended: list[int] = []

    async def work(number: int) -> int:
        begun.append(number)
        try:
            for _ in range(200):
                await asyncio.sleep(0)
            await loop.environment.sleep_until(loop.environment.now_ms() + 10_000)
        finally:
            ended.append(number)
        return number

    async def run() -> int:
        cancellation = Cancellation(random.Random(1), loop.environment, cancels)
        refused = 0
        for number in range(CALLS):
            try:
                assert await cancellation.run(lambda number=number: work(number)) == number
            except CallerCancelled:
                refused += 1
            assert begun == ended == list(range(number + 1))
        return refused

    assert loop.run_until_complete(run()) == given_up
    loop.close()


def test_a_call_that_ends_first_is_not_given_up() -> None:
    """Its result, or its error, is what the caller gets."""
    loop = SimulatedLoop(VirtualEnvironment(1), 1)
    cancellation = Cancellation(random.Random(1), loop.environment, 1.0)

    async def answer() -> str:
        return "done"

    async def fail() -> str:
        raise TxnFrameworkError("refused")

    assert loop.run_until_complete(cancellation.run(answer)) == "done"
    with pytest.raises(TxnFrameworkError, match="refused"):
        loop.run_until_complete(cancellation.run(fail))
    loop.close()


def test_nobody_knows_what_became_of_it() -> None:
    """A history has it as unknown."""
    assert classify_error(CallerCancelled()) == (EventKind.UNKNOWN, None)
