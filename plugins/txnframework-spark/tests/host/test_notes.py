"""The note of a pipeline's state, which a later release may have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import txnframework
from txnframework.config import load_config
from txnframework.errors import UnknownFormat
from txnframework.model.metadata import Expect, Key, Put
from txnframework_spark.pipeline.description import Pipeline
from txnframework_spark.pipeline.status import check_topics, load_status

Play = Callable[..., None]


def test_a_note_of_a_later_release_is_refused_before_the_first_batch(play: Play) -> None:
    """Neither the start of a pipeline nor its status passes over a note that this release cannot read."""

    async def scenario(world: Any) -> None:
        described = msgspec.convert(
            {
                "pipeline": {"name": "app", "checkpoint": "unused"},
                "stores": {"metadata": world.config["metadata"]["url"]},
                "sources": [{"view": "input", "subscribe": "in"}],
                "sinks": [{"topic": "out"}],
            },
            Pipeline,
        )
        await check_topics(described)
        async with txnframework.open(load_config(world.config)) as client:
            await client.host.metadata.put(Put(Key("/spark-pipeline/app"), b'{"format":2}', Expect.ANY))
        for read in (check_topics, load_status):
            with pytest.raises(UnknownFormat, match="the state note of pipeline 'app' has format version 2"):
                await read(described)

    play(scenario)
