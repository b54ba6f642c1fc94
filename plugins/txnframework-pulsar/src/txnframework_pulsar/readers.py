"""Consumers of one connection without a durable subscription, as Pulsar's readers have them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from txnframework.client import Client, Message, MessageID
from txnframework.environment import SystemEnvironment
from txnframework.errors import TxnFrameworkError
from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework.runtime.tasks import start_task
from txnframework_pulsar.deliveries import Deliveries
from txnframework_pulsar.ids import UINT64, SegmentPosition, place_of
from txnframework_pulsar.peer import Peer
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import described

_LOG = logging.getLogger(__name__)

DRAIN_MESSAGES = 100
NOTHING = pb.MessageId(ledger_id=UINT64 - 1, entry_id=UINT64 - 1, partition=-1)
"""The id before all messages."""


@dataclass(frozen=True, slots=True)
class ReadStart:
    """
    Where to begin: at an end of the topic, or at a message of a segment (``inclusive``: with the message itself).

    Messages that were published before ``published_ms`` are skipped.
    """

    place: SegmentPosition | str = "earliest"
    inclusive: bool = False
    published_ms: int = 0

    def skips(self, message: Message, segment: str | None) -> bool:
        """Return whether a message comes before the start, which is in ``segment``."""
        if message.published_ms < self.published_ms:
            return True
        if isinstance(self.place, str) or message.id.segment != segment:
            return False
        at = message.id.position
        return at < self.place.position if self.inclusive else at <= self.place.position


def start_of(command: pb.Subscribe) -> ReadStart:
    """Return where a client wants to begin."""
    if command.start_message_rollback_duration_sec:
        now_ms = SystemEnvironment().now_ms()
        return ReadStart(published_ms=max(0, now_ms - command.start_message_rollback_duration_sec * 1_000))
    if command.HasField("start_message_id"):
        return ReadStart(place_of(command.start_message_id), inclusive=True)
    return ReadStart("earliest" if command.initial_position == pb.Subscribe.EARLIEST else "latest")


class ReaderHandle:
    """
    A consumer that reads a topic, and leaves no trace in the stores.

    Acknowledgments are not stored: the client says where to begin when it subscribes again.
    """

    durable = False

    def __init__(
        self, peer: Peer, client: Client, topic: TopicName, command: pb.Subscribe, given: Deliveries, start: ReadStart
    ) -> None:
        self.command = command
        self.topic = topic
        self._peer = peer
        self._client = client
        self._given = given
        self._start_at = start
        self._consumer_id = command.consumer_id
        self._permits = 0
        self._permitted = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self.passed = NOTHING
        """The last message that was acknowledged, or that was the last one when a reader of new messages began."""

    @property
    def permits(self) -> int:
        """The number of messages that the client permits now."""
        return max(0, self._permits)

    def start(self) -> None:
        """Begin to give messages."""
        self._pump = start_task(self._give())

    def permit(self, messages: int) -> None:
        """Let the client have so many messages more."""
        self._permits = min(self._permits + messages, 2**31)
        if self._permits > 0:
            self._permitted.set()

    async def _give(self) -> None:
        try:
            async with aclosing(self._messages()) as messages:
                written = 0
                async for message in messages:
                    while self._permits <= 0:
                        self._permitted.clear()
                        await self._permitted.wait()
                    self._write(message)
                    written += 1
                    if written % DRAIN_MESSAGES == 0:
                        await self._peer.drained()
        except TxnFrameworkError as error:
            _LOG.info("a reader of %s ends: %s", self.topic, error)
            self._peer.end_consumer(self._consumer_id)
        except Exception:
            _LOG.exception("a reader of %s failed", self.topic)
            self._peer.end_consumer(self._consumer_id)

    async def _messages(self) -> AsyncGenerator[Message, None]:
        place = self._start_at.place
        segment = None if isinstance(place, str) else self._given.message_id(place).segment
        begin: MessageID | str = place if isinstance(place, str) else _before(self._given.message_id(place))
        compacted = self.command.read_compacted and begin == "earliest"
        reader = await self._client.reader(self.topic, start=begin, follow=True, compacted=compacted)
        try:
            async for message in reader:
                if not self._start_at.skips(message, segment):
                    yield message
        finally:
            await reader.close()

    def _write(self, message: Message) -> None:
        metadata, payload, count = described(message)
        command = pb.Message(consumer_id=self._consumer_id, message_id=self._given.give(message))
        self._given.forget_all()
        self._permits -= count
        self._peer.write_message(pb.Command(message=command), metadata, payload)

    def acknowledge(self, command: pb.Ack) -> None:
        """Answer an acknowledgment, which is stored nowhere."""
        for one in command.message_id:
            self.passed = one
        if command.HasField("request_id"):
            answer = pb.AckResponse(consumer_id=command.consumer_id, request_id=command.request_id)
            self._peer.write(pb.Command(ack_response=answer))

    async def close(self) -> None:
        """Stop reading."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})


def _before(message: MessageID) -> MessageID | str:
    """Return a start with which the message, and everything after it, is read."""
    at = message.position
    if at.batch_index > 0:
        return MessageID(message.segment, Position(at.ledger_id, at.entry_id, at.batch_index - 1))
    if at.entry_id > 0:
        return MessageID(message.segment, Position(at.ledger_id, at.entry_id - 1))
    return "earliest"
