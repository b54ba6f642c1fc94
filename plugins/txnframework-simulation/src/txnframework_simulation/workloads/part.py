"""What one actor of a workload is given."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from txnframework.environment import Environment
from txnframework.errors import Corrupt, InvalidInput, StoreMismatch, TxnFrameworkError
from txnframework_simulation.workloads.recorded import RecordedClient

T = TypeVar("T")

WAIT_MS_MAX = 200
NEVER_EXPECTED = (Corrupt, InvalidInput, StoreMismatch)
"""What no fault excuses."""


@dataclass(frozen=True)
class Part:
    """
    One actor's part of a workload.

    ``more`` says whether there is anything left to do; several actors share the operations of their process. The
    actor's choices come from ``chance``, its time from ``environment``. ``host``: the number of its process, from 0 on.
    """

    recorded: RecordedClient
    chance: random.Random
    environment: Environment
    more: Callable[[], bool]
    host: int = 0

    async def repeat(self, actions: dict[Callable[[], Awaitable[object]], float]) -> None:
        """Do one of these after the other, drawn by their weights, until nothing is left to do."""
        choices, weights = list(actions), list(actions.values())
        while self.more():
            (action,) = self.chance.choices(choices, weights)
            if await self.attempt(action) is False:
                await self.wait(WAIT_MS_MAX)

    async def attempt(self, action: Callable[[], Awaitable[object]]) -> bool:
        """Do something that may fail; return whether it succeeded."""
        try:
            await action()
        except NEVER_EXPECTED:
            raise
        except TxnFrameworkError:
            return False
        return True

    async def wait(self, longest_ms: int) -> None:
        """Let some time pass."""
        await self.environment.sleep_until(self.environment.now_ms() + self.chance.randint(1, longest_ms))

    async def wait_for_step(self, step_ms: int) -> None:
        """Let time pass up to the next multiple of ``step_ms``: whoever waits so goes on in the same moment."""
        await self.environment.sleep_until((self.environment.now_ms() // step_ms + 1) * step_ms)

    def likely(self, chance: float) -> bool:
        """Return True with a chance."""
        return self.chance.random() < chance
