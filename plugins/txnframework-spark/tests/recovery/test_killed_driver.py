"""A driver that is killed, wherever it is: the next start goes on exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnframework_spark.microbatch import pause
from txnframework_spark.testing.outputs import LEFT, RIGHT, Defects, batches, compare, torn
from txnframework_spark.testing.stores import Stores, values

STEPS = tuple(point for point in pause.POINTS if point not in (pause.PLANNED, pause.STAGED))
"""A kill at the others finds the same: a read task has a write task that has begun, and all is staged when judged."""

DECIDED = (pause.COMMITTED, pause.SETTLED)
"""Points at which the batch is visible already."""


def test_it_is_killed_at_every_step_of_a_batch(
    stores: Stores, start_process: Callable[..., Any], run: Callable[..., str | None]
) -> None:
    """Nine kills in one life of a pipeline: each start finds what the one before left, and is killed one step on.

    At each kill the batches before are visible as wholes, and this one is or is not, as its point says.
    """
    given = values(0, 100)
    stores.publish(given)
    for point in STEPS:
        done = len(batches(stores.rows(LEFT, RIGHT)))
        place = point if point in pause.WITHOUT_BATCH else f"{point}@{done}"
        with start_process(place) as driver:
            driver.arrival(place)
            seen = stores.rows(LEFT, RIGHT)
            assert torn(seen) == ()
            assert len(batches(seen)) == done + (point in DECIDED), point
    assert run() is None
    assert compare(stores.rows(LEFT, RIGHT), given) == Defects()
