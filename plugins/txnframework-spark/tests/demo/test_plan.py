"""The plan of what is done to the pipeline: complete for every number of batches."""

from __future__ import annotations

import pytest

from txnframework_spark.demo.faults import POINT_MEANINGS, Fault, make_plan, sizes_for, stops_in
from txnframework_spark.microbatch.pause import ACKS_PUT, COMMITTED, MID_WRITE


@pytest.mark.parametrize("batches", [1, 2, 9, 10, 13, 500])
def test_every_plan_kills_at_every_point_and_at_least_four_times(batches: int) -> None:
    """Four points, one of them committed in batch 0; only kills, at most one a start, and a last start without any."""
    plan = make_plan(batches)
    kills = stops_in(plan, Fault.KILL)
    assert len(kills) >= 4
    assert {kill.point for kill in kills} == set(POINT_MEANINGS)
    assert (COMMITTED, 0) in {(kill.point, kill.batch) for kill in kills}
    assert all(start.stops[-1].fault is Fault.KILL for start in plan[:-1])
    assert all(stop.fault is Fault.SPLIT for start in plan for stop in start.stops[:-1])
    assert not plan[-1].stops


@pytest.mark.parametrize("batches", [1, 10])
def test_every_plan_splits_under_a_transaction_that_then_commits(batches: int) -> None:
    """The split is in mid-write; the next kill leaves that transaction alone, or finds its acknowledgments put."""
    for start in make_plan(batches):
        for split, after in zip(start.stops, start.stops[1:], strict=False):
            assert split.point == MID_WRITE
            assert after.batch > split.batch or after.point == ACKS_PUT


@pytest.mark.parametrize("batches", [1, 10])
def test_every_plan_loses_the_checkpoint_once_and_goes_on(batches: int) -> None:
    """It is lost right after a commit that Spark does not know of."""
    plan = make_plan(batches)
    losing = [number for number, start in enumerate(plan) if start.lose_checkpoint]
    assert len(losing) == 1
    assert plan[losing[0]].stops[-1].point == COMMITTED
    assert losing[0] < len(plan) - 1


@pytest.mark.parametrize("batches", [1, 3, 9, 10, 13])
def test_no_plan_needs_more_batches_than_there_are(batches: int) -> None:
    """By query; the batches of the query before the checkpoint was lost are used up."""
    needed, used = 0, 0
    for start in make_plan(batches):
        for stop in start.stops:
            needed = max(needed, used + stop.batch + 1)
        if start.lose_checkpoint:
            used = start.stops[-1].batch + 1
    assert needed <= max(batches, 1)


def test_the_shipped_ratings_make_at_least_ten_batches() -> None:
    """With small entries, so that a batch is not rounded up to much more than was asked for."""
    sizes = sizes_for(1501)
    assert sizes.batches >= 10
    assert sizes.entry * 2 < sizes.batch / 4


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 100, 1501, 20_000])
def test_sizes_fit_every_input(rows: int) -> None:
    """Nothing is zero, and the first part holds the batches that are needed before the rest arrives."""
    sizes = sizes_for(rows)
    assert sizes.batch >= 1
    assert sizes.entry >= 1
    assert 1 <= sizes.first_part <= rows
    if sizes.batches >= 10:
        assert sizes.first_part >= 6 * (sizes.batch + 2 * sizes.entry)


def test_the_batch_size_may_be_asked_for() -> None:
    """Then the number of batches follows."""
    assert sizes_for(1000, 500).batch == 500
    assert sizes_for(1000, 500).batches == 1
