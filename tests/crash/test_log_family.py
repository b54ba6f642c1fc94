"""
The log-driven family, killed at every step and failing at every call: publishing, acknowledging, ending in two phases.

Whoever is left expires what nobody ends and finishes what was decided: each kill is also a take-over of the victim's
coordinators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_scenario import Scenario
from crash_walk import Point, combinations, faults, kills, pauses, run
from scenarios.acknowledging import Acknowledge, AcknowledgeCumulativelyInTransaction
from scenarios.publishing import JoinedBranch, Publish
from scenarios.races import CommitWhileAborted, SendWhileAborted
from scenarios.transactions import Abort, Begin, CollectAborted, CollectCommitted, Commit, TransformInOnePiece

if TYPE_CHECKING:
    from conftest import Explored

SHORT = (Begin, Publish, Acknowledge, Commit, Abort)
SCENARIOS = (
    *SHORT,
    JoinedBranch,
    AcknowledgeCumulativelyInTransaction,
    CollectCommitted,
    CollectAborted,
    TransformInOnePiece,
    SendWhileAborted,
    CommitWhileAborted,
)
SEEDS = range(1, 5)
EVERY = 4
"""The quick run takes every fourth of these points; all of them are run on request."""


@pytest.mark.parametrize("scenario", SHORT)
def test_killed_and_refused(scenario: type[Scenario], explored: Explored) -> None:
    """A sample of what is walked through below."""
    walked = run(scenario, Point(), family="log")
    points = [*kills(walked, changes_only=True)][::EVERY] + [*faults(walked, writes_only=True)][::EVERY]
    for point in points:
        run(scenario, point, family="log")
    explored.add(scenario, True, f"{len(points)} points of the log family", len(points))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_point(scenario: type[Scenario], explored: Explored) -> None:
    """Killed after every step, stopped for long, every call refused or unanswered, and a fault followed by a kill."""
    walked = run(scenario, Point(), family="log")
    points = [*kills(walked), *pauses(walked), *faults(walked), *combinations(walked, SEEDS)]
    for point in points:
        run(scenario, point, family="log")
    explored.add(scenario, True, f"{len(points)} points of the log family", len(points))
