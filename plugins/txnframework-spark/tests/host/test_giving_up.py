"""A pipeline that is stopped in mid-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from txnframework_spark.errors import BatchNotCommitted
from txnframework_spark.pipeline.description import Pipeline
from txnframework_spark.pipeline.status import abort_open_transaction

Play = Callable[..., None]


def test_a_run_that_is_stopped_aborts_its_own_batch_and_never_a_newer_run_s(play: Play) -> None:
    async def scenario(world: Any) -> None:
        told = msgspec.convert(
            {
                "pipeline": {"name": "app", "checkpoint": "unused"},
                "stores": {"metadata": world.config["metadata"]["url"]},
                "sources": [{"view": "input", "subscribe": "in", "group_id": "g"}],
                "sinks": [{"topic": "out"}],
            },
            Pipeline,
        )
        await world.publish("a")
        run = await world.run()
        start, end = await run.plan(None)
        staged = await run.stage(0, await run.read(0, start, end))
        assert not await abort_open_transaction(told, "an older run")
        await run.commit(0, staged)
        await world.publish("b")
        start, end = await run.plan(end.to_json())
        staged = await run.stage(1, await run.read(1, start, end))
        assert await abort_open_transaction(told, run.name)
        assert not await abort_open_transaction(told, run.name)
        with pytest.raises(BatchNotCommitted):
            await run.commit(1, staged)
        assert await world.read() == ["a!"]

    play(scenario)
