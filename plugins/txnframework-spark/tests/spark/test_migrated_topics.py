"""A topic that migrated from the log-driven family, on real Spark: read by a batch and by a stream, and written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import txnframework
from txnframework.model.names import TopicName
from txnframework_spark.testing.stores import once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD, NEW = "persistent://public/default/moved", "topic://public/default/moved"
LOG = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}


async def make_and_migrate(url: str) -> None:
    """Send one message before, and one in each of a committed and an aborted transaction; then migrate the topic."""
    stores: dict[str, Any] = {"metadata": {"url": url}, "ledger": {"url": url}, "domains": {"persistent": LOG}}
    async with txnframework.open(stores) as client:
        await client.create_topic(OLD)
        await client.subscribe(OLD, "g", start="earliest")
        async with await client.producer(OLD) as producer:
            await producer.send(b"plain")
            for value in (b"kept", b"dropped"):
                txn = client.transaction(domain="persistent")
                await txn.begin()
                await producer.send(value, txn=txn)
                await (txn.commit if value == b"kept" else txn.abort)()
        await client.topics.migrations.migrate(TopicName.parse(OLD), TopicName.parse(NEW), 0, lambda *_: None)


def test_a_migrated_topic(spark: SparkSession, stores: Any, run_available: Callable[..., Any]) -> None:
    """The topic joins a stream with a checkpoint, whose batches end inside of the old segment; a batch writes to it."""
    stores.publish(["before"])
    run_available()
    asyncio.run(make_and_migrate(stores.url))
    read = spark.read.format("txnframework").options(metadata=stores.url, subscribe="moved").load()
    rows = read.orderBy("segment", "offset").collect()
    assert [(bytes(row.value), row.topic, row.segment) for row in rows] == [(b"plain", NEW, 0), (b"kept", NEW, 0)]
    new = spark.sql("SELECT cast('new' AS binary) AS key, cast('new' AS binary) AS value")
    new.write.format("txnframework").mode("append").options(metadata=stores.url, topic="moved").save()
    run_available(source={"subscribe": "in,moved", "groupId": "g", "maxOffsetsPerTrigger": "1"})
    assert stores.read() == once(["before", "plain", "kept", "new"])
