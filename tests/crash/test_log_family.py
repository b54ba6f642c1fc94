"""The log-driven family, killed at every step and failing at every call: publishing, acknowledging, two-phase ends.

The other processes expire open transactions and finish decided ones: after each kill they take over the victim's
coordinators.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from crash_scenario import Scenario
from crash_teeth import AppliedLast, failures
from crash_walk import Point, combinations, faults, kills, pauses, run
from scenarios.acknowledging import Acknowledge, AcknowledgeCumulativelyInTransaction
from scenarios.publishing import JoinedBranch, Publish
from scenarios.races import CommitWhileAborted, SendWhileAborted
from scenarios.transactions import Abort, Begin, CollectAborted, CollectCommitted, Commit, TransformInOnePiece

from txnframework_legacy.coordinator.completion import TransactionCompletion
from txnframework_legacy.pending_acks.settlement import AckSettlement

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
    """A sample of the full walk below."""
    walked = run(scenario, Point(), family="log")
    points = [*kills(walked, changes_only=True)][::EVERY] + [*faults(walked, reads_every=None)][::EVERY]
    for point in points:
        run(scenario, point, family="log")
    explored.add(scenario, f"{len(points)} points of the log family", len(points))


def test_settled_before_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an ack is recorded as settled before the cursor moves, a kill in between loses it."""
    settle = AckSettlement._settle

    async def swapped(self: Any, *rest: Any) -> None:
        shadow = copy.copy(self)
        shadow._cursor = AppliedLast(self._cursor)
        await settle(shadow, *rest)
        await shadow._cursor.flush()

    monkeypatch.setattr(AckSettlement, "_settle", swapped)
    assert any("billing receives it" in failed for failed in failures(Commit, family="log"))


def test_final_before_everybody_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a transaction is final before its markers are written, a kill in between leaves it without markers."""
    finish = TransactionCompletion.finish

    async def swapped(self: Any, log: Any, logged: Any, timeout_ms: int) -> Any:
        await self._make_final(log, logged)
        return await finish(self, log, logged, timeout_ms)

    monkeypatch.setattr(TransactionCompletion, "finish", swapped)
    assert any(failures(Commit, family="log"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_point(scenario: type[Scenario], explored: Explored) -> None:
    """Killed after every step, stopped for long, every call refused or unanswered, and a fault followed by a kill."""
    walked = run(scenario, Point(), family="log")
    points = [*kills(walked), *pauses(walked), *faults(walked), *combinations(walked, SEEDS)]
    for point in points:
        run(scenario, point, family="log")
    explored.add(scenario, f"{len(points)} points of the log family", len(points))
