"""A driver that stood still while another one took its place, and goes on: it is told so, and nothing of it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txnframework_spark.testing.expectations import LEFT, RIGHT, Defects, compare
from txnframework_spark.testing.stores import Stores, values

SAME: dict[str, Any] = {}
LOST = {"checkpoint": "another-checkpoint"}
OTHER = {"checkpoint": "another-checkpoint", "sink": {"txnAppId": "other"}}
APPLICATION = "application app was taken over by run "
EITHER = " was taken over by "
"""Its tasks are tried again: whichever comes first, the one that writes or the one that reads."""

SUBSCRIPTION = "subscription g of topic://public/default/in was taken over by a newer run"


@pytest.mark.parametrize(
    ("place", "successor", "what"),
    [
        pytest.param("mid-write@1", SAME, EITHER, id="the same checkpoint, while tasks write"),
        pytest.param("acks-put@1", LOST, APPLICATION, id="another checkpoint, before the decision"),
        pytest.param("acks-put@1", OTHER, SUBSCRIPTION, id="another application, before the decision"),
    ],
)
def test_a_frozen_driver_is_fenced(
    place: str,
    successor: dict[str, Any],
    what: str,
    stores: Stores,
    start_process: Callable[..., Any],
    run: Callable[..., str | None],
) -> None:
    """Its transaction was aborted when its subscription was taken over, so it cannot commit whatever it is told."""
    stores.publish(values(0, 40))
    with start_process(place) as frozen:
        frozen.arrival(place)
        frozen.freeze(stores.is_locked)
        if "checkpoint" in successor:
            successor = {**successor, "checkpoint": str(stores.directory / successor["checkpoint"])}
        stores.publish(values(40, 50))
        assert run(**successor) is None
        assert compare(stores.rows(LEFT, RIGHT), values(0, 50)) == Defects()
        frozen.thaw()
        frozen.release(place)
        told = frozen.failure()
        assert told is not None
        assert what in told
        assert "this one must stop" in told
    assert compare(stores.rows(LEFT, RIGHT), values(0, 50)) == Defects()
