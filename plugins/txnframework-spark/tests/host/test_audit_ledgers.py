"""What an audit lists: segments and compacted copies that records name and that are not stored are findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnframework.broker import EVERYTHING, CompactionResult
from txnframework.model.names import TopicName
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
