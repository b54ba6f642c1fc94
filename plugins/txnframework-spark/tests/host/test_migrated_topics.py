"""A topic that migrated from another family is refused by everything that reads it in tasks, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txnframework.model import migration_changes as changes
from txnframework.model.layout import to_record
from txnframework.model.layout_changes import create_layout
from txnframework.model.metadata import Expect, Put
from txnframework.model.names import TopicName
from txnframework.model.paths import topic_key
from txnframework.model.positions import EARLIEST
from txnframework.model.records import encode
from txnframework_spark.errors import Unsupported
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.snapshot import plan_snapshot
from txnframework_spark.source.topics import require_readable

Play = Callable[..., None]
OLD, NEW = TopicName.parse("persistent://public/default/moved"), TopicName.parse("topic://public/default/moved")
REASON = f"{NEW} was {OLD} before it migrated, and Spark cannot read such a topic"


def migrated() -> Any:
    old = changes.decided(changes.planned(create_layout(OLD, 1), NEW, 0), EARLIEST)
    return changes.migrated(old, changes.reserved(NEW, OLD, None), 0)


def test_layouts() -> None:
    """Only the layout of a topic that migrated is refused."""
    plain = create_layout(NEW, 2)
    assert require_readable(plain) == plain
    with pytest.raises(Unsupported, match=REASON):
        require_readable(migrated())


@pytest.mark.parametrize(
    "source", [{"subscribe": "moved"}, {"subscribe": "moved", "groupId": "g"}, {"subscribePattern": ".*"}]
)
def test_sources(play: Play, source: dict[str, str]) -> None:
    """A stream refuses it before it takes a subscription over, and so does a batch."""

    async def scenario(world: Any) -> None:
        await world.host.metadata.put(Put(topic_key(NEW), encode(to_record(migrated())), Expect.ANY))
        with pytest.raises(Unsupported, match=REASON):
            await (await world.run("q", source={"startingOffsets": "earliest", **source})).plan(None)
        assert (await world.host.topics.layout(NEW)).subscriptions == ()
        if "groupId" not in source:
            with pytest.raises(Unsupported, match=REASON):
                await plan_snapshot(world.host, SourceOptions.parse(source).for_batch())

    play(scenario)
