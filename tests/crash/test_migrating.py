"""A migration between families, killed and paused at every step, and failing at every call of its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_scenario import Scenario
from crash_walk import CrashPointFailed, Point, combinations, faults, kills, pauses, run
from scenarios.migrating import SCENARIOS

from txnframework.broker.segment_opener import SegmentOpener
from txnframework.broker.topics.migration_outcomes import OutcomeRecorder

if TYPE_CHECKING:
    from conftest import Explored

SEEDS = range(1, 5)
EVERY = 6
"""The quick run takes every sixth of these points; all of them are run on request."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_and_refused(scenario: type[Scenario], explored: Explored) -> None:
    """A sample of the full walk below."""
    walked = run(scenario, Point(), family="both")
    points = [*kills(walked, changes_only=True), *pauses(walked), *faults(walked, reads_every=None)][::EVERY]
    for point in points:
        run(scenario, point, family="both")
    explored.add(scenario, f"{len(points)} points of a migration", len(points))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_point(scenario: type[Scenario], explored: Explored) -> None:
    """Killed after every step, stopped for long, every call refused or unanswered, and a fault followed by a kill."""
    walked = run(scenario, Point(), family="both")
    points = [*kills(walked), *pauses(walked), *faults(walked), *combinations(walked, SEEDS)]
    for point in points:
        run(scenario, point, family="both")
    explored.add(scenario, f"{len(points)} points of a migration", len(points))


async def _nothing(*_: object) -> None:
    return None


async def _unchanged(*_: object) -> bool:
    return False


@pytest.mark.parametrize(
    ("owner", "step", "broken", "harm"),
    [
        pytest.param(
            OutcomeRecorder, "_store_records", _nothing, "b'dropped' must not be there", id="no abort records"
        ),
        pytest.param(SegmentOpener, "is_outdated", _unchanged, "LedgerNotFound", id="opened before, used after"),
    ],
)
def test_a_broken_step_is_found(
    owner: type, step: str, broken: object, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a migration omits one of its steps, this walk finds the damage even without a kill."""
    monkeypatch.setattr(owner, step, broken)
    with pytest.raises(CrashPointFailed, match=harm):
        run(SCENARIOS[0], Point(), family="both")
