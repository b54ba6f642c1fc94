"""A driver that is killed, wherever it is: the next start goes on exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnframework_spark.microbatch import pause
from txnframework_spark.testing.expectations import LEFT, RIGHT, Defects, batches, compare, torn
from txnframework_spark.testing.stores import Stores, values

STEPS = tuple(point for point in pause.POINTS if point not in (pause.PLANNED, pause.STAGED))
"""A kill at the others finds the same: a read task has a write task that has begun, and all is staged when judged."""

DECIDED = (pause.COMMITTED, pause.SETTLED)
"""Points at which the batch is visible already."""

BATCH = 1
"""The batch whose steps these are; the points that know no batch are reached by the one before."""


def test_it_is_killed_at_every_step_of_a_batch(
    stores: Stores, start_process: Callable[..., Any], run: Callable[..., str | None]
) -> None:
    """At each step all of its processes stand still while what a kill would leave is copied, stores and checkpoint; at
    the last one they are killed. Each copy is what a next start finds, and goes on exactly.

    At each kill the batches before are visible as wholes, and this one is or is not, as its point says.
    """
    given = values(0, 50)
    stores.publish(given)
    places = {point: point if point in pause.WITHOUT_BATCH else f"{point}@{BATCH}" for point in STEPS}
    left: dict[str, Stores] = {}
    with start_process(*places.values()) as driver:
        for point, place in places.items():
            driver.arrival(place)
            driver.freeze(stores.is_locked)
            left[point] = stores.copy(stores.directory / f"killed-{point}")
            if point != STEPS[-1]:
                driver.thaw()
                driver.release(place)
    left["killed"] = stores
    for point, found in left.items():
        seen = found.rows(LEFT, RIGHT)
        assert torn(seen) == ()
        done = 0 if point in pause.WITHOUT_BATCH else BATCH + (point in (*DECIDED, "killed"))
        assert len(batches(seen)) == done, point
        assert run(url=found.url, checkpoint=str(found.checkpoint)) is None, point
        assert compare(found.rows(LEFT, RIGHT), given) == Defects(), point
