"""Helpers for tests of migrations: plugins of both families, and the names of the topic."""

from __future__ import annotations

from typing import Any

from txnframework import Client, Consumer
from txnframework.broker.topics.migration import Progress
from txnframework.errors import TransactionConflict
from txnframework.model.names import TopicName

LOG = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}
METADATA = dict.fromkeys(LOG, "metadata")
BOTH: dict[str, Any] = {"domains": {"segment": METADATA, "persistent": LOG}}
OLD, NEW = "persistent://public/default/orders", "topic://public/default/orders"
PLUGINS = ("memory", "sql", "metadata", "legacy", "dispatchers")
SOON_MS = 60_000


async def migrate(
    client: Client, topic: str = OLD, to: str = NEW, wait_ms: int = 0, progress: Progress = lambda *_: None
) -> None:
    await client.topics.migrations.migrate(TopicName.parse(topic), TopicName.parse(to), wait_ms, progress)


async def take(client: Client, consumer: Consumer, topic: str, messages: int) -> list[bytes | None]:
    """
    Receive and acknowledge messages, each in a transaction of the topic's present family; return their values.

    A message that was received before the consumer has followed a migration is delivered again.
    """
    found: list[bytes | None] = []
    while len(found) < messages:
        message = await consumer.receive(timeout_ms=SOON_MS)
        try:
            async with client.transaction(domain=await client.transaction_domain(topic)) as txn:
                await consumer.ack(message, txn=txn)
        except TransactionConflict:
            continue
        found.append(message.value)
    return found


async def values(client: Client, topic: str) -> list[bytes]:
    return [message.value async for message in await client.reader(topic)]
