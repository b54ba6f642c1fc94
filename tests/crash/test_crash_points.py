"""Every operation, stopped at each step and failing at each store call: no loss, no duplicates."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from crash_scenario import Scenario
from crash_walk import Point, Walked, combinations, faults, kills, pauses, run
from scenarios import SCENARIOS, applications, races

if TYPE_CHECKING:
    from conftest import Explored

SEEDS = range(1, 5)
ORDERS_OF_EVENTS = range(1, 21)
READS_EVERY = 3
"""Which reads are refused in the ordinary run; slow tests refuse all of them."""
RACES = (*races.SCENARIOS, *applications.RACES)
WALKS = [pytest.param(scenario, id=scenario.__name__) for scenario in SCENARIOS]


@cache
def undisturbed(scenario: type[Scenario]) -> Walked:
    """Run a scenario in which nothing goes wrong; it is the same for every test that asks where something may."""
    return run(scenario, Point())


@pytest.mark.parametrize("scenario", WALKS)
def test_killed_after_every_change(scenario: type[Scenario], explored: Explored) -> None:
    """Killing a process after any step that others can see leaves a state that they can continue."""
    walked = undisturbed(scenario)
    points = list(kills(walked, changes_only=True))
    for point in points:
        run(scenario, point)
    explored.add(scenario, f"{len(points)} kills in {len(walked.lefts)} steps", len(points))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [walk for walk in WALKS if not walk.values[0].composed])
def test_killed_after_every_step(scenario: type[Scenario], explored: Explored) -> None:
    """Steps in between change only memory, which is lost with its process."""
    points = list(kills(undisturbed(scenario)))
    for point in points:
        run(scenario, point)
    explored.add(scenario, f"{len(points)} kills", len(points))


@pytest.mark.parametrize("scenario", WALKS)
def test_stopped_for_long(scenario: type[Scenario], explored: Explored) -> None:
    """A process that is presumed dead and resumes after settling and collection may fail, but does no damage."""
    points = list(pauses(undisturbed(scenario)))
    for point in points:
        run(scenario, point)
    explored.add(scenario, f"{len(points)} pauses", len(points))


@pytest.mark.parametrize("scenario", WALKS)
def test_writes_refused_or_unanswered(scenario: type[Scenario], explored: Explored) -> None:
    """A write that is refused, or applied without a reply, is reported or repaired; so is every third read."""
    walked = undisturbed(scenario)
    points = list(faults(walked, reads_every=None if scenario.composed else READS_EVERY))
    for point in points:
        run(scenario, point)
    explored.add(scenario, f"{len(points)} faults in {len(walked.calls)} calls", len(points))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [walk.values[0] for walk in WALKS if not walk.values[0].composed])
def test_every_call_refused_or_unanswered(scenario: type[Scenario], explored: Explored) -> None:
    """The same holds for each read."""
    points = list(faults(undisturbed(scenario)))
    for point in points:
        run(scenario, point)
    explored.add(scenario, f"{len(points)} faults", len(points))


@pytest.mark.parametrize("scenario", WALKS)
def test_a_fault_and_then_a_kill(scenario: type[Scenario], explored: Explored) -> None:
    """A fault and a kill together do no damage, in any order: a sample, drawn by seeds."""
    points = list(combinations(undisturbed(scenario), SEEDS))
    for point in points:
        run(scenario, point)
    explored.add(scenario, f"{len(points)} of both", len(points))


@pytest.mark.parametrize("scenario", [walk for walk in WALKS if walk.values[0] in RACES])
def test_races_in_many_orders(scenario: type[Scenario], explored: Explored) -> None:
    """Processes that race to end a transaction receive the same outcome, and find it everywhere."""
    for seed in ORDERS_OF_EVENTS:
        run(scenario, Point(seed=seed))
    explored.add(scenario, f"{len(ORDERS_OF_EVENTS)} orders of events", len(ORDERS_OF_EVENTS))
