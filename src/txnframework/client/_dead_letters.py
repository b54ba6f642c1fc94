"""Dead letters: messages that were delivered too often, moved to a topic of their own."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnframework.broker import first_completed
from txnframework.client._arguments import whole_number
from txnframework.client._calls import backoff_of
from txnframework.client._messages import Message
from txnframework.client._sending import size_of
from txnframework.errors import Closed, Conflict, InvalidInput, OutcomeUnknown, TransactionNotFound, Unavailable
from txnframework.model.entries import EntryMessage
from txnframework.model.names import NAME_BYTES_MAX, SegmentName, TopicName, parse_name

if TYPE_CHECKING:
    from txnframework.client._client import Client
    from txnframework.client._consumer import Consumer
    from txnframework.client._producer import Producer

TOPIC_HEADER = "dead-letter-topic"
SEGMENT_HEADER = "dead-letter-segment"
POSITION_HEADER = "dead-letter-position"
SUBSCRIPTION_HEADER = "dead-letter-subscription"
DELIVERIES_HEADER = "dead-letter-deliveries"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """
    What becomes of a message that would be redelivered more than ``redeliveries_max`` times: it goes to ``topic``.

    Without a name that is ``<topic>-<subscription>-DLQ``, beside the topic that it was received from; it is made when
    it is needed and missing. The message keeps its key, value and headers, and gets headers that say where it comes
    from: ``dead-letter-topic``, ``dead-letter-segment``, ``dead-letter-position``, ``dead-letter-subscription`` and
    ``dead-letter-deliveries``, how often it was delivered. Of these, what would make it larger than
    ``client.message_bytes_max`` is left out.

    Deliveries are counted by the process that dispatches, in its memory: where another one takes over, or it is started
    again, counting begins anew. So a message that kills whoever receives it never becomes a dead letter; limit that
    where processes are started.
    """

    redeliveries_max: int
    topic: str | None = None

    def __post_init__(self) -> None:
        """Refuse a number that makes no sense."""
        whole_number(self.redeliveries_max, "redeliveries_max", 0)

    def topic_for(self, source: TopicName, subscription: str) -> TopicName:
        """
        Return where dead letters of a topic go.

        :raises InvalidInput: that is not the name of a topic, or the one that they come from.
        """
        name = parse_name(self.topic or f"{source}-{subscription}-DLQ")
        if isinstance(name, SegmentName):
            raise InvalidInput(f"dead letters go to a topic, and {name} is a segment; name its topic, {name.topic}")
        if name == source:
            raise InvalidInput(f"dead letters of {source} cannot go to that topic itself: they would come again")
        return name


class DeadLetters:
    """
    Moves the dead letters of one consumer, one after the other, while it goes on receiving.

    A message is sent and acknowledged in one transaction: it stands in the dead-letter topic once, and is done, or
    neither. Whoever crashes in between leaves a transaction that is aborted, and whoever moves the same message at the
    same time, having taken over, conflicts with it. What waits here is bounded by what a consumer may have
    unacknowledged.

    Where no transaction can take part in both topics, because they are of two families or one of them is served
    without, the message is sent first, under a producer's name made of its own position, so that sending it again, from
    whatever process, stores it once; then it is acknowledged.
    """

    def __init__(self, client: Client, rule: DeadLetter, consumer: Consumer) -> None:
        self.error: Exception | None = None
        """Why dead letters cannot be moved; they stay unacknowledged."""
        self._client = client
        self._rule = rule
        self._consumer = consumer
        self._waiting: deque[Message] = deque()
        self._producers: dict[TopicName, Producer] = {}
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def sort_out(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the messages that may be received; move the others soon."""
        letters = [one for one in messages if one.redelivery_count > self._rule.redeliveries_max]
        if not letters:
            return messages
        self._waiting += letters
        if self._task is None and not self._closing.is_set() and self.error is None:
            self._task = asyncio.ensure_future(self._run())
        return tuple(one for one in messages if one.redelivery_count <= self._rule.redeliveries_max)

    async def close(self) -> None:
        """Come to an end with the one that is being moved; others are delivered again to whoever is next."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait({self._task})
        for producer in self._producers.values():
            await producer.close()

    async def _run(self) -> None:
        try:
            while self._waiting and not self._closing.is_set():
                await self._until_moved(self._waiting.popleft())
        except Exception as error:
            self.error = error
            self._consumer.notice()
        finally:
            self._task = None

    async def _until_moved(self, message: Message) -> None:
        environment = self._client.host.environment
        backoff = backoff_of(environment, self._client.host.config.client)
        failures = 0
        while not self._closing.is_set():
            try:
                await self._move(message)
            except (Unavailable, OutcomeUnknown):
                # If an earlier attempt was committed after all, the next one finds the message acknowledged.
                failures += 1
                await first_completed(backoff.pause(failures), self._closing.wait())
            except (Conflict, TransactionNotFound):
                # It is done, or somebody else has it in hand; otherwise it comes again, and here.
                await self._consumer.nack(message)
                return
            except Closed:
                return
            else:
                return

    async def _move(self, message: Message) -> None:
        source = TopicName.parse(message.topic)
        target = self._rule.topic_for(source, self._consumer.subscription)
        headers = self._headers(message)
        domain = self._client.host.shared_domain(str(source), str(target))
        if domain is None:
            await self._send_then_ack(message, target, headers)
            return
        producer = await self._producer(target)
        async with self._client.transaction(domain=domain) as txn:
            await producer.send(message.value, key=message.key, headers=headers, txn=txn)
            await self._consumer.ack(message, txn=txn)

    async def _send_then_ack(self, message: Message, target: TopicName, headers: dict[str, bytes]) -> None:
        """A crash between the two steps: whoever comes after it sends the same again, and it is stored once."""
        await self._client.create_topic(str(target), exist_ok=True)
        name = _producer_name(message, self._consumer.subscription)
        async with await self._client.producer(str(target), name=name) as producer:
            await producer.send(message.value, key=message.key, headers=headers, sequence_id=0)
        await self._consumer.ack(message)

    async def _producer(self, target: TopicName) -> Producer:
        if target not in self._producers:
            await self._client.create_topic(str(target), exist_ok=True)
            self._producers[target] = await self._client.producer(str(target))
        return self._producers[target]

    def _headers(self, message: Message) -> dict[str, bytes]:
        """Return the message's headers with as many of where it comes from as fit: it must not stay for their sake."""
        headers = dict(message.headers)
        for name, content in self._origin(message).items():
            added = {**headers, name: content}
            letter = EntryMessage(message.key, message.value, tuple(added.items()), 0, 0)
            if size_of(letter) <= self._client.host.config.client.message_bytes_max:
                headers = added
        return headers

    def _origin(self, message: Message) -> dict[str, bytes]:
        """Return where a message comes from, what is needed most to find it first."""
        return {
            SEGMENT_HEADER: message.id.segment.encode(),
            POSITION_HEADER: str(message.id.position).encode(),
            SUBSCRIPTION_HEADER: self._consumer.subscription.encode(),
            DELIVERIES_HEADER: b"%d" % message.redelivery_count,
            TOPIC_HEADER: message.topic.encode(),
        }


def _producer_name(message: Message, subscription: str) -> str:
    """Return the name under which a message is sent on, the same one by whatever process."""
    name = f"dead-letter {message.id} {subscription}"
    if len(name.encode()) <= NAME_BYTES_MAX and name == name.strip():
        return name
    return f"dead-letter {hashlib.sha256(name.encode()).hexdigest()}"
