"""Dead letters: messages that were delivered too often and are moved to a topic of their own."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from txnframework.broker import Host, first_completed
from txnframework.client._admin import create_topic
from txnframework.client._arguments import whole_number
from txnframework.client._base import RetryPolicy, backoff_of
from txnframework.client._messages import Message
from txnframework.client._planned import PlannedAck
from txnframework.client._producer import Producer, open_producer
from txnframework.client._sends.batches import size_of
from txnframework.client._transaction import TransactionPart
from txnframework.client._transaction_admin import TransactionOperations
from txnframework.errors import (
    BacklogQuotaExceeded,
    Closed,
    Conflict,
    InvalidInput,
    OutcomeUnknown,
    TransactionNotFound,
    Unavailable,
)
from txnframework.model.entries import EntryMessage
from txnframework.model.names import NAME_BYTES_MAX, SegmentName, TopicName, dead_letter_topic, parse_name
from txnframework.runtime.tasks import start_task

TOPIC_HEADER = "dead-letter-topic"
SEGMENT_HEADER = "dead-letter-segment"
POSITION_HEADER = "dead-letter-position"
SUBSCRIPTION_HEADER = "dead-letter-subscription"
DELIVERIES_HEADER = "dead-letter-deliveries"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """
    Moves a message that would be redelivered more than ``redeliveries_max`` times to ``topic``.

    The default topic is ``<topic>-<subscription>-DLQ``, in the namespace of the source topic; it is created on first
    use. The message keeps its key, value and headers. These headers are added:

    * ``dead-letter-topic``, ``dead-letter-segment``, ``dead-letter-position`` and ``dead-letter-subscription``: the
      source of the message,
    * ``dead-letter-deliveries``: how often the message was delivered.

    A header is left out if it would make the message larger than ``client.message_bytes_max``.

    Deliveries to consumers with such a rule are counted in the store, so counts survive restarts and take-overs. A
    message that ends its process at each delivery becomes a dead letter too, after at most three further deliveries.
    A graceful stop of a handler loop does not count, nor does the loss of a lease by a process that lives.
    """

    redeliveries_max: int
    topic: str | None = None

    def __post_init__(self) -> None:
        """Validate ``redeliveries_max``."""
        whole_number(self.redeliveries_max, "redeliveries_max", 0)

    def topic_for(self, source: TopicName, subscription: str) -> TopicName:
        """
        Return the dead-letter topic for messages of ``source``.

        :raises InvalidInput: the name is not a topic name, or it is the source topic.
        """
        name = parse_name(self.topic or dead_letter_topic(str(source), subscription))
        if isinstance(name, SegmentName):
            raise InvalidInput(f"dead letters go to a topic, and {name} is a segment; name its topic, {name.topic}")
        if name == source:
            raise InvalidInput(f"dead letters of {source} cannot go to that topic itself: they would come again")
        return name


class LetterSource(Protocol):
    """The consumer whose dead letters are moved."""

    subscription: str

    async def ack(self, *messages: Message, txn: TransactionPart | None = None) -> None:
        """Acknowledge messages."""

    def acknowledging(self, *messages: Message) -> PlannedAck:
        """Return acknowledgments for ``Client.transact``."""

    async def nack(self, *messages: Message) -> None:
        """Request redelivery."""

    def notice(self) -> None:
        """Raise the error of the dead letters in ``receive``."""


class DeadLetters:
    """
    Moves the dead letters of one consumer, one at a time, while the consumer continues to receive.

    A message is sent and acknowledged in one transaction: it is stored in the dead-letter topic once and acknowledged,
    or neither. A crash in between leaves a transaction that is aborted. A process that took over and moves the same
    message at the same time gets a conflict. The queue here is bounded by the consumer's limit of unacknowledged
    messages.

    Sometimes no transaction can include both topics, because they belong to two families or one has no transactions.
    Then the message is sent first and acknowledged afterwards. The producer name is derived from the message's
    position, so that repeated sends, from any process, store the message once.
    """

    def __init__(self, host: Host, rule: DeadLetter, consumer: LetterSource) -> None:
        self.error: Exception | None = None
        """The error for which dead letters cannot be moved; they remain unacknowledged."""
        self._host = host
        self._retry = RetryPolicy(host.environment, host.config.client)
        self._transactions = TransactionOperations(host)
        self._rule = rule
        self._consumer = consumer
        self._waiting: deque[Message] = deque()
        self._producers: dict[TopicName, Producer] = {}
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def sort_out(self, messages: tuple[Message[Any], ...]) -> tuple[Message[Any], ...]:
        """Return the messages that may be received, and start moving the others."""
        letters = [one for one in messages if one.redelivery_count > self._rule.redeliveries_max]
        if not letters:
            return messages
        self._waiting += letters
        if self._task is None and not self._closing.is_set() and self.error is None:
            self._task = start_task(self._run())
        return tuple(one for one in messages if one.redelivery_count <= self._rule.redeliveries_max)

    async def close(self) -> None:
        """Finish the message that is being moved; the others are redelivered to the next consumer."""
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
        backoff = backoff_of(self._host.environment, self._host.config.client)
        failures = 0
        while not self._closing.is_set():
            try:
                await self._move(message)
            except (BacklogQuotaExceeded, Unavailable, OutcomeUnknown):
                # If this attempt was committed after all, the next one finds the message acknowledged.
                failures += 1
                await first_completed(backoff.pause(failures), self._closing.wait())
            except (Conflict, TransactionNotFound):
                # It is acknowledged, or another process is moving it; otherwise it is redelivered and moved then.
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
        if self._host.shared_domain(str(source), str(target)) is None:
            await self._send_then_ack(message, target, headers)
            return
        producer = await self._producer(target)
        letter = producer.outgoing(message.value, key=message.key, headers=headers)
        await self._transactions.transact(letter, self._consumer.acknowledging(message))

    async def _send_then_ack(self, message: Message, target: TopicName, headers: dict[str, bytes]) -> None:
        """Send, then acknowledge; after a crash between the two, the repeated send is recognised and stores nothing."""
        await create_topic(self._host, target, exist_ok=True)
        name = _producer_name(message, self._consumer.subscription)
        async with await open_producer(self._host, self._retry, target, name) as producer:
            await producer.send(message.value, key=message.key, headers=headers, sequence_id=0)
        await self._consumer.ack(message)

    async def _producer(self, target: TopicName) -> Producer:
        if target not in self._producers:
            await create_topic(self._host, target, exist_ok=True)
            self._producers[target] = await open_producer(self._host, self._retry, target, None)
        return self._producers[target]

    def _headers(self, message: Message) -> dict[str, bytes]:
        """Return the message's headers, plus as many headers about its source as fit into ``message_bytes_max``."""
        headers = dict(message.headers)
        for name, content in self._origin(message).items():
            added = {**headers, name: content}
            letter = EntryMessage(message.key, message.value, tuple(added.items()), 0, 0)
            if size_of(letter) <= self._host.config.client.message_bytes_max:
                headers = added
        return headers

    def _origin(self, message: Message) -> dict[str, bytes]:
        """Return the headers about the source of a message, the most important ones for finding it first."""
        return {
            SEGMENT_HEADER: message.id.segment.encode(),
            POSITION_HEADER: str(message.id.position).encode(),
            SUBSCRIPTION_HEADER: self._consumer.subscription.encode(),
            DELIVERIES_HEADER: b"%d" % message.redelivery_count,
            TOPIC_HEADER: message.topic.encode(),
        }


def _producer_name(message: Message, subscription: str) -> str:
    """Return the producer name for a dead letter, which is the same in every process."""
    name = f"dead-letter {message.id} {subscription}"
    if len(name.encode()) <= NAME_BYTES_MAX and name == name.strip():
        return name
    return f"dead-letter {hashlib.sha256(name.encode()).hexdigest()}"
