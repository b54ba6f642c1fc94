"""A suspended driver that was replaced resumes: it gets an error, and none of its work takes effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnframework_spark.testing.expectations import LEFT, RIGHT, Defects, compare
from txnframework_spark.testing.stores import Stores, values

APPLICATION = "application app was taken over by run "
EITHER = " was taken over by "
"""Its tasks are tried again: whichever comes first, the one that writes or the one that reads."""

SUBSCRIPTION = "subscription g of topic://public/default/in was taken over by a newer run"

Start = Callable[..., Any]
Run = Callable[..., str | None]


def overtake(stores: Stores, run: Run, **successor: Any) -> None:
    """Run a successor, which processes everything, with what has come since."""
    stores.publish(values(40, 50))
    assert run(url=stores.url, **successor) is None
    assert compare(stores.rows(LEFT, RIGHT), values(0, 50)) == Defects()


def test_a_driver_is_frozen_while_its_tasks_write(stores: Stores, start_process: Start, run: Run) -> None:
    """Its successor has the same checkpoint.

    Its transaction was aborted when its subscription was taken over, so the commit fails, whatever Spark reports to it.
    """
    stores.publish(values(0, 40))
    with start_process("mid-write@1") as frozen:
        frozen.arrival("mid-write@1")
        frozen.freeze(stores.is_locked)
        overtake(stores, run)
        frozen.thaw()
        frozen.release("mid-write@1")
        told = frozen.failure()
        assert told is not None
        assert EITHER in told
        assert "this one must stop" in told
    assert compare(stores.rows(LEFT, RIGHT), values(0, 50)) == Defects()


def test_a_driver_is_frozen_before_two_decisions(stores: Stores, job: Any, start_process: Start, run: Run) -> None:
    """The successor of one query has another checkpoint, and that of the other one is another application, too."""
    stores.publish(values(0, 40))
    both = stores, stores.copy(stores.directory / "other")
    jobs = [job(url=one.url, checkpoint=str(one.checkpoint)) for one in both]
    with start_process("acks-put@1", others=jobs[1:]) as frozen:
        frozen.arrivals("acks-put@1", 2)
        frozen.freeze(lambda: any(one.is_locked() for one in both))
        for one, sink in zip(both, ({}, {"sink": {"txnAppId": "other"}}), strict=True):
            overtake(one, run, checkpoint=str(one.directory / "another-checkpoint"), **sink)
        frozen.thaw()
        frozen.release("acks-put@1")
        for told, what in zip(frozen.failures(), (APPLICATION, SUBSCRIPTION), strict=True):
            assert what in told
            assert "this one must stop" in told
    for one in both:
        assert compare(one.rows(LEFT, RIGHT), values(0, 50)) == Defects()
