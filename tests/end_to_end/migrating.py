"""What the tests of migrations have in common: plugins of both families, and the names of the topic."""

from __future__ import annotations

from typing import Any

from txnframework import Client
from txnframework.broker.topics.migration import Progress
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


async def values(client: Client, topic: str) -> list[bytes]:
    return [message.value async for message in await client.reader(topic)]
