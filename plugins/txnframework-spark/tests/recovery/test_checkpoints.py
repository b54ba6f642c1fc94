"""Checkpoints that are lost, older than what was committed, or one batch behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from txnframework_spark.testing.expectations import LEFT, RIGHT, Defects, batches, compare
from txnframework_spark.testing.stores import Stores, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Run = Callable[..., str | None]


def test_a_stateless_pipeline_needs_no_checkpoint(stores: Stores, run: Run) -> None:
    """Its subscription and its application tell what is done, also where Spark has forgotten or never knew."""

    def goes_on_exactly(upto: int, **source: str) -> None:
        assert run(source=source) is None
        assert compare(stores.rows(LEFT, RIGHT), values(0, upto)) == Defects()

    stores.publish(values(0, 50))
    goes_on_exactly(50)
    assert len(batches(stores.rows(LEFT, RIGHT))) >= 3
    kept = stores.keep_checkpoint()

    # The last batch again, as after a kill between the decision and Spark's record of it.
    assert stores.forget_last_batch() >= 2
    stores.publish(values(50, 60))
    goes_on_exactly(60)

    # An older checkpoint, whose batches are cut otherwise now: up to the cursor all of them are replays.
    stores.publish(values(60, 75))
    goes_on_exactly(75)
    stores.restore_checkpoint(kept)
    stores.publish(values(75, 85))
    goes_on_exactly(85, maxOffsetsPerTrigger="7")

    # Without its checkpoint it goes on at the cursor, as a new query with the old application id.
    shutil.rmtree(stores.checkpoint)
    stores.publish(values(85, 90))
    goes_on_exactly(90)

    # Batch 0 of the new query again: Spark asks for the initial offset anew, and the cursor has moved.
    assert stores.forget_last_batch() == 0
    goes_on_exactly(90)


def test_a_batch_without_rows_is_done_once_as_well(stores: Stores, run: Run) -> None:
    """A plan that drops all rows acknowledges them all the same; a start that finds nothing does nothing."""

    def only_later(frame: DataFrame) -> DataFrame:
        from txnframework_spark.testing.program import both

        return both(frame.where("cast(split(cast(value as string), ' ')[1] as int) >= 30"))

    stores.publish(values(0, 30))
    assert run(only_later) is None
    assert stores.rows(LEFT, RIGHT) == ()
    assert run(only_later) is None
    # Lost with the checkpoint it is not: the cursor has passed what was dropped.
    shutil.rmtree(stores.checkpoint)
    stores.publish(values(30, 40))
    assert run() is None
    assert stores.forget_last_batch() == 0
    assert run() is None
    assert compare(stores.rows(LEFT, RIGHT), values(30, 40)) == Defects()


def expected_totals(first: int, last: int) -> list[str]:
    """Return what the plan ``totals`` writes for the windows of these numbers, by plain Python."""
    windows = (range(start, start + 10) for start in range(first, last, 10))
    return [f"{window[0]} {len(window)} {sum(window)}" for window in windows]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


@pytest.mark.parametrize("segments", [1])
def test_a_stateful_pipeline_goes_on_with_its_checkpoint_and_is_refused_without(
    stores: Stores, start_process: Callable[..., Any], run: Run
) -> None:
    """Killed when batch 0 is decided, which then comes again, or before batch 1 is, totals are right. With another
    state than that of the last batch nothing is written: neither by a new query nor from an older checkpoint.

    The windows that the last numbers close are written by a batch that reads nothing; it comes again as well.
    """
    stateful = {"plan": "totals", "sink": {"txnAppStateful": "true"}}

    def has_totals(upto: int, found: Stores = stores) -> None:
        assert compare(found.rows(LEFT, RIGHT), expected_totals(0, upto)) == Defects()

    stores.publish(numbers(0, 45))
    with start_process("committed@0", "acks-put@1", **stateful) as driver:
        driver.arrival("committed@0")
        driver.freeze(stores.is_locked)
        decided = stores.copy(stores.directory / "decided")
        driver.thaw()
        driver.release("committed@0")
        driver.arrival("acks-put@1")
    for found in (decided, stores):
        assert run(url=found.url, checkpoint=str(found.checkpoint), **stateful) is None
        has_totals(40, found)
    kept = stores.keep_checkpoint()
    stores.forget_last_batch()
    assert run(**stateful) is None
    has_totals(40)

    stores.publish(numbers(45, 65))
    assert run(**stateful) is None
    has_totals(60)

    stores.publish(numbers(65, 75))
    whole = stores.directory / "whole-checkpoint"
    stores.checkpoint.rename(whole)
    told = run(**stateful)
    assert told is not None
    assert "is new to the application, so its state is empty; restore the right checkpoint" in told
    stores.restore_checkpoint(kept)
    told = run(**stateful)
    assert told is not None
    assert "but the checkpoint continues with batch" in told
    has_totals(60)

    stores.restore_checkpoint(whole)
    assert run(**stateful) is None
    has_totals(70)
