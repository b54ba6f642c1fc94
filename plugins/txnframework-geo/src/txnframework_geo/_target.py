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

from txnframework.client import (
    Client,
    Consumer,
    Message,
    MessageID,
    Producer,
    Transaction,
    TransactionPart,
    create_topic,
)
from txnframework.errors import InvalidInput, ReceiveTimeout
from txnframework.model.acks import AckState
from txnframework.model.cursor import state_of
from txnframework.model.entries import EntryView
from txnframework.model.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, TopicName
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import Isolation, ReadRequest, Visibility
from txnframework.runtime.tasks import start_task
from txnframework_geo._progress import Progress, decode, encode

SUBSCRIPTION = "geo"
SENDS_MAX = 500
"""The most messages that are on their way to the target at one time."""
TAKEN_WITHIN_MS = 1_000
"""If the progress is not delivered within this time, the target is asked whether it has lost what comes next."""


def progress_topic_of(topics: tuple[TopicName, ...], name: str) -> TopicName:
    """Return the topic for the progress; it does not depend on which topics of one domain a replication has."""
    return TopicName(topics[0].domain, DEFAULT_TENANT, DEFAULT_NAMESPACE, f"geo-{name}")


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
        if client.host.shared_domain(*map(str, topics), str(self.progress_topic)) is None:
            raise InvalidInput(
                "no transaction of the target can include all of these topics, because several families serve them:"
                " replicate the topics of each family under a --name of their own"
            )
        self._client = client
        self._topics = topics
        self._name = name
        self._resources = AsyncExitStack()
        self._producers: dict[TopicName, Producer] = {}
        self._consumer: Consumer | None = None
        self._held: Message | None = None
        self._domain = ""
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
        """
        Create the topics that do not exist, with these numbers of segments, and open what sends to them.

        :raises InvalidInput: some of the topics have migrated, and no transaction includes them and the others.
        """
        for topic in self._topics:
            await create_topic(self._client.host, topic, segments[topic], exist_ok=True)
            self._producers[topic] = await self._resources.enter_async_context(await self._client.producer(topic))
        domains = {one: await self._client.transaction_domain(one) for one in (*self._topics, self.progress_topic)}
        self._domain = domains[self.progress_topic]
        if others := [str(one) for one, domain in domains.items() if domain != self._domain]:
            raise InvalidInput(
                f"in the target, {', '.join(others)} and {self.progress_topic} are served by different families,"
                " because some of them have migrated: migrate the others as well"
            )

    def transaction(self) -> Transaction:
        """Return a transaction over the topics; it may take as long as the target allows."""
        timeout_ms = self._client.host.config.transactions.timeout_ms_max
        return self._client.transaction(timeout_ms=timeout_ms, domain=self._domain)

    async def join(self) -> None:
        """Wait until no other process replicates under this name, as far as leases can tell."""
        await create_topic(self._client.host, self.progress_topic, exist_ok=True)
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
        """
        Receive the progress of ``step_min`` or a later step, and hold it for the next transaction.

        :raises InvalidInput: the target has lost the latest progress.
        """
        assert self._consumer is not None, "it has joined"
        while True:
            try:
                message = await self._consumer.receive(timeout_ms=TAKEN_WITHIN_MS)
            except ReceiveTimeout:
                await self._require_latest()
                continue
            progress = self._progress_of(message)
            if progress.step >= step_min:
                self._held = message
                return progress
            await self._consumer.ack(message)  # a copy of the first one

    async def _require_latest(self) -> None:
        """
        Raise InvalidInput if the last progress was acknowledged, although no later one is stored.

        The message of the next progress is stored before the transaction that acknowledges this one commits. Only a
        ledger store that was restored from a backup breaks this rule. What is stored is read after the acknowledgment.
        A message that is stored and cannot be read yet, because its transaction is open or being settled, is not lost.
        """
        last = await self._client.last_message(self.progress_topic)
        layout = await self._client.layout(self.progress_topic)
        if last is None or len(layout.segments) > 1:
            return
        subscribed = await self._client.host.subscription(str(layout.topic), SUBSCRIPTION, last.segment)
        if state_of(await subscribed.cursor.load(), last.position) is not AckState.DELETED:
            return
        if not await self._has_later(last):
            raise InvalidInput(
                "the target has lost messages with the latest progress, as if its ledger store alone had been restored"
                f" from a backup: to begin anew, delete {self.progress_topic} and the copies in the target"
            )

    async def _has_later(self, last: MessageID) -> bool:
        """Return whether a message is stored behind the last one that can be read, unless it was aborted."""
        opened = await self._client.host.segment(last.segment)
        after, tail = last.position.entry, (await opened.ledger.tail()).last_confirmed
        while after < tail:
            page = await opened.buffer.read(ReadRequest(after, Limit(100), Isolation.READ_UNCOMMITTED))
            if any(entry.visibility is not Visibility.ABORTED for entry in page.entries):
                return True
            reached = max([page.upto, *(entry.position for entry in page.entries[-1:])])
            if reached <= after:
                return True  # what is stored there cannot be read now
            after = reached
        return False

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
        self._sending.append(start_task(sending))
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
