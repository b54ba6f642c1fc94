"""Callers that cancel their calls, at any step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError

T = TypeVar("T")

STEPS_MAX = 80
"""
The maximum number of rounds of the loop before a call is cancelled.

Most calls are cancelled much earlier.
"""
WAIT_MS_MAX = 2_000
WAITING = 0.2
"""The share of callers that wait for some time before they cancel, as for a store that does not reply."""


class CallerCancelled(TxnFrameworkError):
    """The caller cancelled the call; its outcome is unknown."""

    def __init__(self) -> None:
        super().__init__("the caller cancelled the call")


class Cancellation:
    """Cancels the share ``cancels`` of the calls that go through it."""

    def __init__(self, chance: random.Random, environment: Environment, cancels: float) -> None:
        self._chance = chance
        self._environment = environment
        self._cancels = cancels

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """
        Do the work, or begin the work and cancel it.

        :raises CallerCancelled: the work was cancelled; its earlier effects remain.
        """
        if self._chance.random() >= self._cancels:
            return await work()
        doing = asyncio.ensure_future(work())
        try:
            for _ in range(1 + int(self._chance.random() ** 3 * STEPS_MAX)):
                await asyncio.sleep(0)
            if not doing.done() and self._chance.random() < WAITING:
                due_ms = self._environment.now_ms() + self._chance.randint(1, WAIT_MS_MAX)
                await self._environment.sleep_until(due_ms)
        finally:
            doing.cancel()
            await asyncio.wait({doing})
        if doing.cancelled():
            raise CallerCancelled
        return doing.result()
