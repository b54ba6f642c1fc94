"""What is said of a run in which something fails that no fault excuses."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from txnframework_simulation.simulator.run import run
from txnframework_simulation.simulator.scenario import parse_scenario
from txnframework_simulation.workloads import ActorContext, Workload


class Failing(Workload[Any]):
    """The first host fails, and the others wait without end for its work."""

    topics: ClassVar[dict[str, int]] = {"orders": 1}

    async def run(self, context: ActorContext) -> None:
        """Fail, or wait."""
        if not context.host:
            raise ZeroDivisionError("nobody has thought of this")
        await asyncio.Event().wait()


def test_what_failed_is_told_instead_of_who_waits_for_it() -> None:
    """The report names the failure, not the hosts that hang because of it."""
    result = run(parse_scenario(f'workload = "{__name__}:Failing"\nhosts = 2\nactors = 1', "failing"), 1)
    assert [one.invariant for one in result.violations] == ["no unexpected error"]
    assert "ZeroDivisionError: nobody has thought of this" in result.violations[0].sentence
