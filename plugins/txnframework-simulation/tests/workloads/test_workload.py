"""What one actor is given."""

from __future__ import annotations

import random
from typing import Any, cast

from txnframework.testing.clock import START_MS
from txnframework_simulation.simulator.loop import SimulatedLoop
from txnframework_simulation.workloads.workload import ActorContext

STEP_MS = 500


def test_who_waits_for_a_step_goes_on_with_all_others_that_do() -> None:
    """Whenever they came: at the next multiple of the step, and never at once."""
    loop = SimulatedLoop()
    went_on: list[int] = []

    async def wait(began_ms: int) -> None:
        await loop.environment.sleep_until(began_ms)
        context = ActorContext(cast("Any", None), random.Random(1), loop.environment, lambda: True)
        await context.wait_for_step(STEP_MS)
        went_on.append(loop.environment.now_ms())

    tasks = [loop.spawn(loop.outside, wait(START_MS + after_ms)) for after_ms in (0, 1, 123, 499)]
    loop.run_until(lambda: all(task.done() for task in tasks))
    assert went_on == [START_MS + STEP_MS] * len(tasks)
    loop.close()
