"""One consumer of the stream on the servers; it keeps no state there, and is replaced when it is broken or silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from txnframework.errors import Unavailable
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.connection._failures import RequestRefused
from txnframework_nats.records._layout import EXPECTED_HEADER, EXPECTED_SUBJECT_HEADER, WRITE_HEADER

HEARTBEAT_S = 1

_NS = 1_000_000_000
_UNUSED_S = 30
_SILENCE_S = 3.5
_STATUS = "100"
_ACK_TOKENS = 9


class FeedMessage(msgspec.Struct, frozen=True, gc=False):
    """
    A message of the stream.

    ``write``: the write that it belongs to. ``batch``: its batch, or empty; ``is_end``: it is the last one of that.
    ``replaced``: the number of the message that was the last one of its subject; 0 if there was none.
    """

    subject: str
    sequence: int
    payload: bytes
    write: str
    batch: str = ""
    is_end: bool = False
    replaced: int = 0


class StreamConsumer:
    """
    One consumer; its messages are numbered without gaps.

    ``receive`` is called with each message, ``broken`` if a message was lost between the server and this process.
    """

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        name: str,
        receive: Callable[[FeedMessage], None],
        broken: Callable[[], None],
    ) -> None:
        self.subscription: Subscription | None = None
        self._connection = connection
        self._stream = stream
        self._name = name
        self._receive = receive
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._delivered = 0
        self._has_ended = False
        self._heard_s = self._loop.time()

    @property
    def is_silent(self) -> bool:
        """Whether no message, and no heartbeat, has arrived for some time."""
        return self._loop.time() - self._heard_s > _SILENCE_S

    async def start(self, sequence: int) -> None:
        """
        Consume from this number on.

        :raises Unavailable: the servers did not make the consumer.
        :raises ReplyLost: they may have made it.
        """
        self.subscription = await self._connection.subscribe(self.deliver)
        config = {
            "name": self._name,
            "deliver_subject": self.subscription.subject,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": sequence,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "flow_control": True,
            "idle_heartbeat": HEARTBEAT_S * _NS,
            "inactive_threshold": _UNUSED_S * _NS,
        }
        try:
            await self._connection.api(
                f"CONSUMER.CREATE.{self._stream}.{self._name}",
                {"stream_name": self._stream, "config": config, "action": "create"},
            )
        except RequestRefused as error:
            raise Unavailable(f"{self._connection.shown_url}: no consumer: {error}") from error

    def ignore(self) -> None:
        """Deliver nothing more."""
        self._has_ended = True

    async def end(self) -> None:
        """Deliver nothing more; without a subscriber, the servers remove the consumer after a while."""
        self.ignore()
        if self.subscription is not None:
            await self._connection.unsubscribe(self.subscription)

    async def deliver(self, message: Msg) -> None:
        """Take a message of the subscription: of the stream, a heartbeat, flow control, or of another client."""
        if self._has_ended:
            return
        self._heard_s = self._loop.time()
        headers = message.headers or {}
        if headers.get("Status") == _STATUS:
            await self._receive_status(message, headers)
            return
        try:
            sequence, number = _numbers(message.reply)
        except (IndexError, ValueError):
            return  # not from the consumer
        self._delivered += 1
        if number != self._delivered:
            self._broken()
            return
        batch, is_end = headers.get("Nats-Batch-Id", ""), "Nats-Batch-Commit" in headers
        write = headers.get(WRITE_HEADER, "")
        self._receive(FeedMessage(message.subject, sequence, message.data, write, batch, is_end, _replaced(headers)))

    async def _receive_status(self, message: Msg, headers: dict[str, str]) -> None:
        """Answer flow control, and compare a heartbeat with what was received."""
        answer_to = message.reply or headers.get("Nats-Consumer-Stalled", "")
        if answer_to:
            await self._connection.send(answer_to)
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) != self._delivered:
            self._broken()


def _replaced(headers: dict[str, str]) -> int:
    """Return the number that a message expected on its own subject; a fresh record has none, and replaces nothing."""
    expected = headers.get(EXPECTED_HEADER, "")
    return int(expected) if expected.isdecimal() and EXPECTED_SUBJECT_HEADER not in headers else 0


def _numbers(reply: str) -> tuple[int, int]:
    """Return the numbers of a message in the stream and in the consumer, from the subject of its acknowledgment."""
    tokens = reply.split(".")
    # The longer form has the domain and the account's hash after the second token.
    first = 5 if len(tokens) == _ACK_TOKENS else 7
    return int(tokens[first]), int(tokens[first + 1])
