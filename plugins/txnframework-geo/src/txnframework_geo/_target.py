"""
The target of a replication: its producers, and the topic with the progress.

The progress is a message, and the transaction that stores the next one acknowledges it. An acknowledgment counts once:
of all transactions that acknowledge one message, at most one commits. So the progress is a chain, and of several
processes that continue from the same progress, one succeeds. The others, however long they were paused, get
TransactionConflict, or find their transaction aborted, and what they sent is never read. Nothing relies on the lease
under which the progress is received; the lease only keeps several processes from trying in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from txnframework.client import Client, Consumer, Message, Producer, TransactionPart
from txnframework.errors import InvalidInput
from txnframework.model.entries import EntryView
from txnframework.model.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, TopicName
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import ReadRequest
from txnframework_geo._progress import Progress, decode, encode

SUBSCRIPTION = "geo"
SENDS_MAX = 500
"""The most messages that are on their way to the target at one time."""


def progress_topic_of(topics: tuple[TopicName, ...], name: str) -> TopicName:
    """Return the topic for the progress; it does not depend on which topics of one domain a replication has."""
    return TopicName(topics[0].domain, DEFAULT_TENANT, DEFAULT_NAMESPACE, f"geo-{name}")


def domain_of(client: Client, topics: tuple[TopicName, ...]) -> str:
    """
    Return the domain of the target's transactions.

    :raises InvalidInput: no transaction can include all of these topics.
    """
    domain = client.host.shared_domain(*map(str, topics))
    if domain is None:
        raise InvalidInput(
            "no transaction of the target can include all of these topics, because several families serve them:"
            " replicate the topics of each family under a --name of their own"
        )
    return domain


class Target:
    """
    What one process holds of the target; ``async with`` releases it.

    ``take`` waits while another process replicates under this name.
    """

    def __init__(self, client: Client, topics: tuple[TopicName, ...], name: str) -> None:
        self.identity: str = client.host.metadata.identity
        self.progress_topic = progress_topic_of(topics, name)
        if self.progress_topic in topics:
            raise InvalidInput(f"{self.progress_topic} is for the progress of this replication: choose another --name")
        self.domain = domain_of(client, (*topics, self.progress_topic))
        self._client = client
        self._topics = topics
        self._name = name
        self._resources = AsyncExitStack()
        self._producers: dict[TopicName, Producer] = {}
        self._consumer: Consumer | None = None
        self._held: Message | None = None
        self._sending: list[asyncio.Task[object]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._sending:
            one.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._resources.aclose()

    async def prepare(self, segments: Mapping[TopicName, int]) -> None:
        """Create the topics that do not exist, with these numbers of segments, and open what sends to them."""
        for topic in self._topics:
            await self._client.create_topic(topic, segments=segments[topic], exist_ok=True)
            self._producers[topic] = await self._resources.enter_async_context(await self._client.producer(topic))

    async def join(self) -> None:
        """Wait until no other process replicates under this name, as far as leases can tell."""
        await self._client.create_topic(self.progress_topic, exist_ok=True)
        await self._client.subscribe(self.progress_topic, SUBSCRIPTION, start="earliest")
        self._consumer = await self._resources.enter_async_context(
            await self._client.consumer(self.progress_topic, SUBSCRIPTION, type="failover", stand_by=True)
        )
        await self._consumer.wait_until(active=True)

    async def stored(self) -> Progress | None:
        """Return the latest progress; None: there is none."""
        last = await self._client.last_message(self.progress_topic)
        if last is None:
            return None
        # Each progress is stored after the one that it continues from, so the last one is the latest, unless it is a
        # late copy of the first one.
        at = last.position
        opened = await self._client.host.segment(last.segment)
        page = await opened.buffer.read(ReadRequest(Position(at.ledger_id, at.entry_id - 1), Limit(1)))
        view = EntryView(page.entries[0].data, at, last.segment)
        latest = decode(view.message(at.batch_index).value, str(self.progress_topic))
        if latest.step > 0:
            return latest
        async with await self._client.reader(self.progress_topic) as reader:
            async for message in reader:
                found = self._progress_of(message)
                if found.step > latest.step:
                    latest = found
        return latest

    async def begin(self, progress: Progress) -> None:
        """
        Store the first progress.

        All processes send it with one sequence id, so of several that begin at the same time, one succeeds. Should a
        process have been paused for so long that its copy is stored again, ``take`` drops it, as it has a lower step.
        """
        name = f"geo-{self._name}"
        async with await self._client.producer(self.progress_topic, name=name) as producer:
            await producer.send(encode(progress), sequence_id=progress.step)

    async def take(self, step_min: int) -> Progress:
        """Receive the progress of ``step_min`` or a later step, and hold it for the next transaction."""
        assert self._consumer is not None, "it has joined"
        while True:
            message = await self._consumer.receive()
            progress = self._progress_of(message)
            if progress.step >= step_min:
                self._held = message
                return progress
            await self._consumer.ack(message)  # a copy of the first one

    async def replace(self, progress: Progress, txn: TransactionPart) -> None:
        """
        Store the next progress in a transaction.

        :raises TransactionConflict: another process has continued from the progress that is held.
        """
        assert self._consumer is not None, "it has joined"
        assert self._held is not None, "a progress was taken"
        await self._consumer.ack(self._held, txn=txn)
        async with await self._client.producer(self.progress_topic) as producer:
            await producer.send(encode(progress), txn=txn)

    async def send(
        self,
        topic: TopicName,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes],
        txn: TransactionPart,
    ) -> None:
        """Send a message soon; messages of one topic keep their order. ``flush`` raises what fails."""
        sending = self._producers[topic].send(value, key=key, headers=headers, txn=txn)
        self._sending.append(asyncio.ensure_future(sending))
        if len(self._sending) >= SENDS_MAX:
            await self.flush()

    async def flush(self) -> None:
        """Wait until everything is stored."""
        sending, self._sending = self._sending, []
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        for one in outcomes:
            if isinstance(one, BaseException):
                raise one

    def _progress_of(self, message: Message) -> Progress:
        return decode(message.value, str(self.progress_topic))
