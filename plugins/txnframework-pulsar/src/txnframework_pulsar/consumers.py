"""Consumers of one connection, of durable subscriptions: flow, acknowledgments, redelivery and seek."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from txnframework.client import Client, Consumer, Message, TransactionPart
from txnframework.errors import TxnFrameworkError
from txnframework.model.names import TopicName
from txnframework.runtime.tasks import start_task
from txnframework_pulsar.deliveries import Deliveries, Given
from txnframework_pulsar.faults import Refused, code_of
from txnframework_pulsar.ids import place_of
from txnframework_pulsar.peer import Peer
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import described

_LOG = logging.getLogger(__name__)

RECEIVE_MAX = 100
"""Messages that are taken from the framework's consumer at once."""
DRAIN_BYTES = 256 * 1024
"""How much is written before the client must have read most of it."""
PERMITS_MAX = 2**31
IDS_AT_ONCE = 1_000
"""Message ids of a frame that are handled in one step; a client may send more in one frame."""


@dataclass(frozen=True, slots=True)
class _Acknowledgment:
    command: pb.Ack
    txn: TransactionPart | None
    done: Callable[[], None]


class ConsumerHandle:
    """
    A consumer of a client.

    Messages are written as far as the client permits. While it permits none, the framework gives them to other
    consumers of the subscription, unless each key has its consumer. Acknowledgments are carried out in the order in
    which they were written.
    """

    durable = True

    def __init__(
        self, peer: Peer, client: Client, opened: Consumer, topic: TopicName, command: pb.Subscribe, given: Deliveries
    ) -> None:
        self.opened = opened
        self.command = command
        self._peer = peer
        self._client = client
        self._topic = topic
        self._given = given
        # Clients drop messages of earlier epochs than theirs, and cannot tell one without an epoch.
        self._epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        self._consumer_id = command.consumer_id
        self._permits = 0
        self._permitted = asyncio.Event()
        self._acks: deque[_Acknowledgment] = deque()
        self._acking: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._pump: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def permits(self) -> int:
        """The number of messages that the client permits now."""
        return max(0, self._permits)

    @property
    def unacknowledged(self) -> int:
        """The number of messages that were given and are not acknowledged."""
        return len(self._given)

    def start(self) -> None:
        """Begin to give messages."""
        if self._closed:
            return
        self._pump = start_task(self._give())
        if self.command.sub_type == pb.Subscribe.FAILOVER and self._telling is None:
            self._telling = start_task(self._tell_whether_active())

    def permit(self, messages: int) -> None:
        """Let the client have so many messages more."""
        self._permits = min(self._permits + messages, PERMITS_MAX)
        if self._permits > 0:
            self._permitted.set()

    # -- giving ---------------------------------------------------------------------------------------

    async def _give(self) -> None:
        try:
            while True:
                if self._permits <= 0:
                    await self._wait_for_permits()
                written = 0
                for message in await self.opened.receive_many(messages_max=min(self._permits, RECEIVE_MAX)):
                    if written >= DRAIN_BYTES:
                        # If the task is cancelled here, the messages that are left come again: see ``_paused``.
                        await self._peer.drained()
                        written = 0
                    written += self._write(message)
                await self._peer.drained()
        except TxnFrameworkError as error:
            # The client subscribes again, and gets the error then if it lasts.
            _LOG.info("a consumer of subscription %s ends: %s", self.opened.subscription, error)
            self._peer.end_consumer(self._consumer_id)
        except Exception:
            # Otherwise the client would wait for messages permanently.
            _LOG.exception("a consumer of subscription %s failed", self.opened.subscription)
            self._peer.end_consumer(self._consumer_id)

    async def _wait_for_permits(self) -> None:
        # A key-shared consumer that is slow keeps its keys.
        if self.command.sub_type != pb.Subscribe.KEY_SHARED:
            self.opened.pause()
        self._permitted.clear()
        await self._permitted.wait()
        self.opened.resume()

    def _write(self, message: Message) -> int:
        metadata, payload, count = described(message)
        command = pb.Message(
            consumer_id=self._consumer_id,
            message_id=self._given.give(message),
            redelivery_count=message.redelivery_count,
        )
        if self._epoch is not None:
            command.consumer_epoch = self._epoch
        self._permits -= count
        return self._peer.write_message(pb.Command(message=command), metadata, payload)

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """
        Give no messages meanwhile.

        A cancelled ``receive_many`` has taken none. What it has returned and was not written, the framework takes for
        received: the caller lets all unacknowledged messages be given again, or leaves.
        """
        async with self._turn:
            await self._stop()
            try:
                yield
            finally:
                self.start()

    async def _stop(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
            self._pump = None
            if not self._closed:
                self.opened.resume()

    async def _tell_whether_active(self) -> None:
        """Tell the client whether its consumer gets messages, or stands by: at first, and after each change."""
        active = self.opened.is_active
        try:
            while True:
                change = pb.ActiveConsumerChange(consumer_id=self._consumer_id, is_active=active)
                self._peer.write(pb.Command(active_consumer_change=change))
                active = not active
                await self.opened.wait_until(active=active)
        except TxnFrameworkError:
            return  # ``_give`` ends for the same reason, and the client learns it there

    # -- acknowledging --------------------------------------------------------------------------------

    def acknowledge(self, command: pb.Ack, txn: TransactionPart | None, done: Callable[[], None]) -> None:
        """
        Acknowledge after all earlier acknowledgments; the client is answered if it asked for it.

        ``done`` is called at the end.
        """
        self._acks.append(_Acknowledgment(command, txn, done))
        if self._acking is None:
            self._acking = start_task(self._acknowledge_all())

    async def _acknowledge_all(self) -> None:
        try:
            while self._acks:
                await self._acknowledge_some()
        finally:
            self._acking = None
            while self._acks:
                self._acks.popleft().done()

    async def _acknowledge_some(self) -> None:
        """Carry out the first acknowledgment, with those after it that can share its operation."""
        some = [self._acks.popleft()]
        first = some[0]
        if first.command.ack_type == pb.Ack.INDIVIDUAL:
            while self._acks and _alike(self._acks[0], first):
                some.append(self._acks.popleft())
        failed: Exception | None = None
        try:
            await self._carry_out(some, first.txn)
        except asyncio.CancelledError:
            _release(some)
            raise
        except (TxnFrameworkError, Refused) as error:
            failed = error
        except Exception as error:
            _LOG.exception("an acknowledgment of %s failed", self.opened.subscription)
            failed = error
        for one in some:
            if one.command.HasField("request_id"):
                self._peer.write(_acknowledged(one.command, failed))
        _release(some)
        unexpected = failed is not None and not isinstance(failed, (TxnFrameworkError, Refused))
        unanswered = not all(one.command.HasField("request_id") for one in some)
        if failed is not None and (unexpected or unanswered):
            # The client takes these messages for acknowledged: it gets them again when it has subscribed again.
            _LOG.warning("an acknowledgment of %s failed: %s", self.opened.subscription, failed)
            self._peer.end_consumer(self._consumer_id)

    async def _carry_out(self, some: list[_Acknowledgment], txn: TransactionPart | None) -> None:
        first = some[0].command
        if txn is not None and any(given.ack_set for one in some for given in one.command.message_id):
            raise Refused(pb.NOT_ALLOWED_ERROR, "a transaction acknowledges an encrypted batch as a whole")
        if first.ack_type == pb.Ack.CUMULATIVE:
            for given in first.message_id:
                covered = self._given.upto(given)
                for last in covered:
                    await self.opened.ack_cumulative(last, txn=txn)
                self._given.forget_upto(covered)
            return
        # Part of an encrypted batch is left out: the client acknowledges the whole batch in the end.
        whole = (given for one in some for given in one.command.message_id if not given.ack_set)
        for messages in self._resolved(whole):
            await self.opened.ack(*messages, txn=txn)
            self._given.forget(messages)
            await asyncio.sleep(0)

    def _resolved(self, given: Iterable[pb.MessageId]) -> Iterator[list[Given]]:
        """Yield the messages of ids in parts: one frame may have so many that other clients would wait for long."""
        ids = iter(given)
        while part := [self._given.resolve(one) for one in itertools.islice(ids, IDS_AT_ONCE)]:
            yield part

    # -- moving ---------------------------------------------------------------------------------------

    async def redeliver(self, command: pb.RedeliverUnacknowledged) -> None:
        """Give messages again: those that are named, or all that are not acknowledged."""
        if command.message_ids:
            for messages in self._resolved(one for one in command.message_ids if not one.ack_set):
                self._given.forget(messages)
                await self.opened.nack(*messages, delay_ms=0)
                await asyncio.sleep(0)
            return
        async with self._paused():
            if command.HasField("consumer_epoch"):
                self._epoch = max(self._epoch or 0, command.consumer_epoch)
            self._given.forget_all()
            await self.opened.redeliver_unacknowledged()

    async def seek(self, command: pb.Seek) -> None:
        """
        Move the subscription.

        The client has to subscribe again, so that it drops the messages that are on their way to it.
        """
        async with self._paused():
            if command.HasField("message_id"):
                place = place_of(command.message_id)
                if isinstance(place, str):
                    await self._seek(place)
                else:
                    await self.opened.seek(self._given.message_id(place))
            else:
                await self.opened.seek(command.message_publish_time)
            self._given.forget_all()
        self._peer.end_consumer(self._consumer_id)

    async def _seek(self, end: str) -> None:
        await self.opened.seek("earliest" if end == "earliest" else "latest")

    async def statistics(self) -> pb.ConsumerStatsResponse:
        """Return the numbers that the client asks for, without those that the gateway does not measure."""
        lag = await self._client.lag(self._topic, self.opened.subscription)
        return pb.ConsumerStatsResponse(
            consumer_name=self.command.consumer_name,
            available_permits=self.permits,
            unacked_messages=self.unacknowledged,
            message_backlog=lag.messages,
            type=pb.Subscribe.Type.Name(self.command.sub_type).title(),
        )

    async def unsubscribe(self) -> None:
        """Leave, and delete the subscription."""
        await self.close()
        await self._client.unsubscribe(self._topic, self.opened.subscription)

    async def close(self) -> None:
        """Carry out the acknowledgments that were written, and leave; other messages go to other consumers."""
        async with self._turn:
            self._closed = True
            await self._stop()
            if self._telling is not None:
                self._telling.cancel()
                await asyncio.wait({self._telling})
            while self._acking is not None:
                await asyncio.wait({self._acking})
            await self.opened.close()


def _release(some: list[_Acknowledgment]) -> None:
    for one in some:
        one.done()


def _alike(one: _Acknowledgment, first: _Acknowledgment) -> bool:
    return one.command.ack_type == first.command.ack_type and one.txn is first.txn


def _acknowledged(command: pb.Ack, failed: Exception | None) -> pb.Command:
    answer = pb.AckResponse(consumer_id=command.consumer_id, request_id=command.request_id)
    if command.HasField("txnid_least_bits"):
        answer.txnid_least_bits = command.txnid_least_bits
        answer.txnid_most_bits = command.txnid_most_bits
    if failed is not None:
        answer.error = code_of(failed)
        answer.message = str(failed)
    return pb.Command(ack_response=answer)
