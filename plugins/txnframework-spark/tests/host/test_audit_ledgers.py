"""What an audit lists: segments and compacted copies that records name and that are not stored are findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnframework.broker import EVERYTHING, CompactionResult
from txnframework.broker.topics.layouts import StoredLayouts
from txnframework.model import paths, records
from txnframework.model.layout_changes import with_subscription
from txnframework.model.metadata import Expect, Put
from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework_spark.jobs.audit.deployment import check_ledgers, load_deployment

Play = Callable[..., None]
KEPT, LOST = "segment://public/default/in/0000-ffff-0", "segment://public/default/lost/0000-ffff-0"


def test_a_lost_segment_and_a_lost_copy_are_found_and_a_deleted_topic_is_not(play: Play) -> None:
    async def scenario(world: Any) -> None:
        host = world.host
        for topic in ("lost", "split", "persistent://public/default/old"):
            await host.topics.create(TopicName.parse(topic), 1)
        await host.topics.split(TopicName.parse("split"), 0)
        await world.publish("a", "b")
        attempt = await host.compaction.attempts.begin(KEPT)
        async with host.compaction.attempts.open_writer(attempt) as writer:
            await writer.seal()
        upto = (await (await host.segment(KEPT)).ledger.tail()).last_confirmed
        await host.compaction.attempts.finish(attempt, CompactionResult((writer.name,), upto, EVERYTHING, "position"))
        assert await check_ledgers(host, await load_deployment(host)) == []

        await host.ledgers.delete(LOST, None)
        await host.ledgers.delete(writer.name, None)
        found = await load_deployment(host)
        assert found.lacks_copy(KEPT)
        assert sorted((one.check, one.name) for one in await check_ledgers(host, found)) == [
            ("missing-ledger", writer.name),
            ("missing-ledger", LOST),
        ]
        # Deleted, or compacted again, after it was listed.
        await host.topics.delete(TopicName.parse("lost"))
        await host.compaction.attempts.remove(KEPT, None)
        assert await check_ledgers(host, found) == []

    play(scenario)


def test_what_is_beyond_the_end_of_a_segment_is_found(play: Play) -> None:
    """Also where a subscription begins that has no cursor yet, and what was trimmed: a producer is refused there."""

    async def scenario(world: Any) -> None:
        await world.publish("a", "b")
        assert (await load_deployment(world.host)).beyond == []
        layouts = StoredLayouts(world.host.metadata)
        layout, version = await layouts.load(TopicName.parse("in"))
        await layouts.put(with_subscription(layout, "late", {0: Position(1, 50)}), version)
        trimmed = records.encode(records.TrimmedRecord(ledger=7, at_ms=0))
        await world.host.metadata.put(Put(paths.trimmed_key(KEPT), trimmed, Expect.ABSENT))
        found = await load_deployment(await world.open_host())
        assert [(one.check, one.name, one.ledger, one.entry) for one in found.beyond] == [
            ("cursor-beyond-end", KEPT, 1, 50),
            ("cursor-beyond-end", KEPT, 7, -1),
        ]
        assert "subscription late begins after 1:50, beyond the end 1:1" in found.beyond[0].detail
        assert found.ends[KEPT] == Position(1, 1)

    play(scenario)
