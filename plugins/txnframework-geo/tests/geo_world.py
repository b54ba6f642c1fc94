"""Two deployments in memory, programs that send transactions over two topics, and what a reader of them checks."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

from txnframework import Client, Message
from txnframework.model.names import TopicName
from txnframework.testing import MemoryStores
from txnframework_geo import ID_HEADER, Replication, Replicator, Stage, Step

PATIENCE_S = 300
"""What takes longer hangs, also on a machine with much else to do."""
NAMES = ("left", "right")


def topics_of(domain: str) -> tuple[TopicName, ...]:
    return tuple(TopicName(domain, "public", "default", name) for name in NAMES)


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(bounded())


class World:
    """A source and a target; ``domain``: that of the two topics."""

    def __init__(self, domain: str = "topic") -> None:
        self.topics = topics_of(domain)
        self.domain = "persistent" if domain == "persistent" else "segment"
        self.source, self.target = MemoryStores(), MemoryStores()
        self.sent = 0

    async def create(self, client: Client, segments: int = 2) -> None:
        for topic in self.topics:
            await client.create_topic(topic, segments=1 if topic.domain == "persistent" else segments)

    async def begin(self) -> None:
        """Create the topics in the source, send one transaction, and replicate it."""
        async with self.source.open() as source:
            await self.create(source)
            await self.send(source)
        await self.copy()

    async def send(self, client: Client, *, times: int = 1, key: bytes = b"key", commit: bool = True) -> None:
        """Send transactions of two messages to each topic, with ``NUMBER.PART`` as values; abort the last if wanted."""
        for _ in range(times):
            self.sent += 1
            number = self.sent
            txn = client.transaction(domain=self.domain)
            await txn.begin()
            for part in range(2):
                for topic in self.topics:
                    async with await client.producer(topic) as producer:
                        await producer.send(b"%d.%d" % (number, part), key=key, headers={"part": b"%d" % part}, txn=txn)
            await (txn.commit() if commit else txn.abort())

    def replicator(
        self,
        source: Client,
        target: Client,
        *,
        reached: Callable[[Stage], Awaitable[None]] | None = None,
        name: str = "default",
        forward: bool = False,
        messages_min: int = 20_000,
    ) -> Replicator:
        replication = Replication(self.topics, name, forward, messages_min)
        return (
            Replicator(source, target, replication)
            if reached is None
            else Replicator(source, target, replication, reached=reached)
        )

    async def copy(self, *, name: str = "default", forward: bool = False, messages_min: int = 20_000) -> int:
        """Replicate once; return the number of copied messages."""
        copied = 0

        def count(step: Step) -> None:
            nonlocal copied
            copied += step.copied

        async with self.source.open() as source, self.target.open() as target:
            replicator = self.replicator(source, target, name=name, forward=forward, messages_min=messages_min)
            await replicator.run(once=True, on_step=count)
        return copied

    async def assert_same(self) -> None:
        """Check that the target has what the source has: each message once, and each key in the same order."""
        for topic in self.topics:
            original, copied = await self.source.read(str(topic)), await self.target.read(str(topic))
            assert sorted(str(one.id) for one in original) == sorted(one.headers[ID_HEADER].decode() for one in copied)
            assert by_key(original) == by_key(copied)


def by_key(messages: list[Message]) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for one in messages:
        found[one.key].append(one.value)
    return dict(found)


async def torn(client: Client, topics: tuple[TopicName, ...], parts: int = 4) -> list[bytes]:
    """Return the numbers of the transactions that a snapshot of the topics shows in part, or more than once."""
    snapshot = await client.snapshot(*topics)
    counts: dict[bytes, int] = defaultdict(int)
    for topic in topics:
        async for message in await snapshot.reader(topic):
            assert message.value is not None
            counts[message.value.split(b".")[0]] += 1
    return [number for number, count in counts.items() if count != parts]
