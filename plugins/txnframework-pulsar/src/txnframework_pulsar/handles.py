"""The producers and consumers of one connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from txnframework.client import Client
from txnframework.errors import Conflict
from txnframework.model.dispatch import StandardType
from txnframework.model.names import check_new_name
from txnframework.runtime.tasks import start_task
from txnframework_pulsar.access import Access
from txnframework_pulsar.consumers import ConsumerHandle
from txnframework_pulsar.deliveries import Deliveries
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.ids import place_of, pulsar_id
from txnframework_pulsar.limits import Limits
from txnframework_pulsar.peer import Peer
from txnframework_pulsar.producers import ProducerHandle
from txnframework_pulsar.readers import NOTHING, ReaderHandle, ReadStart, start_of
from txnframework_pulsar.scalable import ScalableTopics
from txnframework_pulsar.schemas import Schemas
from txnframework_pulsar.topic_producers import TopicProducers
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.transactions import Transactions
from txnframework_pulsar.turn import ServingTurn
from txnframework_pulsar.wire import messages_pb2 as pb

_LOG = logging.getLogger(__name__)

TYPES: Mapping[int, StandardType] = {
    pb.Subscribe.EXCLUSIVE: "exclusive",
    pb.Subscribe.SHARED: "shared",
    pb.Subscribe.FAILOVER: "failover",
    pb.Subscribe.KEY_SHARED: "key_shared",
}


@dataclass(frozen=True, slots=True)
class Gateway:
    """What all connections share."""

    client: Client
    topics: Topics
    transactions: Transactions
    producers: TopicProducers
    limits: Limits
    access: Access
    schemas: Schemas
    scalable: ScalableTopics
    turn: ServingTurn


class Handles:
    """Opens, finds and closes the producers and consumers of one connection."""

    def __init__(self, gateway: Gateway, peer: Peer) -> None:
        self._gateway = gateway
        self._peer = peer
        self._producers: dict[int, tuple[str, ProducerHandle]] = {}
        self._consumers: dict[int, ConsumerHandle | ReaderHandle] = {}
        # Where readers continue that sought, by topic and subscription: their client subscribes again.
        self._sought: dict[tuple[str, str], ReadStart] = {}
        # The topics and subscriptions of stream consumers, which then subscribe exclusively.
        self._streams: set[tuple[str, str]] = set()
        self._opening: dict[tuple[str, int], asyncio.Task[object]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        peer.leave = self._leave_soon
        peer.leave_producer = self._leave_producer_soon

    # -- producers ------------------------------------------------------------------------------------

    async def open_producer(self, command: pb.Producer) -> pb.Command:
        """Open a producer."""
        number = command.producer_id
        if number in self._producers:
            raise Refused(pb.PRODUCER_BUSY, f"producer {number} exists already on this connection")
        answer = pb.ProducerSuccess(request_id=command.request_id, schema_version=b"")

        def wait(name: str) -> None:
            answer.producer_name, answer.producer_ready = name, False
            self._peer.write(pb.Command(producer_success=answer))

        with self._opened_once("producer", number):
            if command.HasField("schema"):
                topic, layout = await self._gateway.topics.opened(command.topic)
                answer.schema_version = await self._gateway.schemas.version_of(topic, layout, command.schema)
            opened = await self._gateway.producers.open(command, self._peer, wait)
            self._producers[number] = (opened.topic, opened.handle)
        answer.producer_name, answer.producer_ready = opened.handle.opened.name, True
        answer.last_sequence_id = opened.last_sequence_id
        if opened.topic_epoch is not None:
            answer.topic_epoch = opened.topic_epoch
        return pb.Command(producer_success=answer)

    def producer(self, number: int) -> ProducerHandle | None:
        """Return a producer; None: it was closed."""
        known = self._producers.get(number)
        return None if known is None else known[1]

    async def close_producer(self, command: pb.CloseProducer) -> pb.Command:
        """Close a producer after its sends, or stop opening it; one that is closed already is closed."""
        await self._stop_opening("producer", command.producer_id)
        known = self._producers.pop(command.producer_id, None)
        if known is not None:
            await self._gateway.producers.release(*known)
        return _success(command.request_id)

    # -- consumers ------------------------------------------------------------------------------------

    async def subscribe(self, command: pb.Subscribe) -> None:
        """Open a consumer, or a reader."""
        number = command.consumer_id
        if number in self._consumers:
            raise Refused(pb.CONSUMER_BUSY, f"consumer {number} exists already on this connection")
        with self._opened_once("consumer", number):
            opened = await (self._consumer(command) if command.durable else self._reader(command))
            self._consumers[number] = opened
        self._peer.write(_success(command.request_id))
        opened.start()

    async def subscribe_stream(self, asked: pb.ScalableTopicSubscribe) -> pb.Command:
        """Answer which segments a stream consumer receives: all, while no earlier one of its subscription does."""
        check_new_name(asked.subscription, "subscription name")
        if len(self._streams) >= self._gateway.limits.handles_max:
            raise Refused(pb.TOO_MANY_REQUESTS, "this connection has too many stream consumers")
        answer = await self._gateway.scalable.assignment(asked)
        for segment in answer.scalable_topic_subscribe_response.assignment.segments:
            self._streams.add((segment.segment_topic, asked.subscription))
        return answer

    async def _consumer(self, command: pb.Subscribe) -> ConsumerHandle:
        kind = TYPES.get(command.sub_type)
        if kind == "exclusive" and (command.topic, command.subscription) in self._streams:
            kind = "failover"
        if kind is None or command.key_shared_meta.key_shared_mode == pb.KeySharedMeta.STICKY:
            raise Refused(pb.NOT_ALLOWED_ERROR, "this type of subscription is not supported")
        topic, layout = await self._gateway.topics.opened(command.topic, create=command.force_topic_creation)
        if command.HasField("schema"):
            await self._gateway.schemas.version_of(topic, layout, command.schema, first=True)
        try:
            consumer = await self._gateway.client.consumer(
                topic,
                command.subscription,
                type=kind,
                start="earliest" if command.initial_position == pb.Subscribe.EARLIEST else "latest",
                priority=command.priority_level,
                stand_by=False if kind == "exclusive" else None,
            )
        except Conflict as error:
            raise Refused(pb.CONSUMER_BUSY, str(error)) from error
        return ConsumerHandle(self._peer, self._gateway.client, consumer, topic, command, Deliveries(layout))

    async def _reader(self, command: pb.Subscribe) -> ReaderHandle:
        topic, layout = await self._gateway.topics.opened(command.topic, create=command.force_topic_creation)
        start = self._sought.pop((command.topic, command.subscription), None) or start_of(command)
        client = self._gateway.client
        reader = ReaderHandle(self._peer, client, topic, command, Deliveries(layout), start)
        if start.place == "latest":
            last = await client.last_message(topic)
            reader.passed = (None if last is None else pulsar_id(last)) or NOTHING
        return reader

    def consumer(self, number: int) -> ConsumerHandle | ReaderHandle | None:
        """Return a consumer; None: it was closed."""
        return self._consumers.get(number)

    def _required(self, number: int) -> ConsumerHandle | ReaderHandle:
        known = self._consumers.get(number)
        if known is None:
            raise Refused(pb.CONSUMER_NOT_FOUND, f"there is no consumer {number} on this connection")
        return known

    async def close_consumer(self, command: pb.CloseConsumer) -> pb.Command:
        """Close a consumer after its acknowledgments, or stop opening it; one that is closed already is closed."""
        await self._stop_opening("consumer", command.consumer_id)
        known = self._consumers.pop(command.consumer_id, None)
        if known is not None:
            await known.close()
        return _success(command.request_id)

    async def unsubscribe(self, command: pb.Unsubscribe) -> pb.Command:
        """Close a consumer, and delete its subscription."""
        known = self._required(command.consumer_id)
        del self._consumers[command.consumer_id]
        await (known.unsubscribe() if isinstance(known, ConsumerHandle) else known.close())
        return _success(command.request_id)

    async def seek(self, command: pb.Seek) -> pb.Command:
        """Move a subscription, or a reader."""
        known = self._required(command.consumer_id)
        if isinstance(known, ConsumerHandle):
            await known.seek(command)
        else:
            sought = ReadStart(published_ms=command.message_publish_time)
            if command.HasField("message_id"):
                sought = ReadStart(place_of(command.message_id), inclusive=True)
            self._sought[known.command.topic, known.command.subscription] = sought
            self._peer.end_consumer(command.consumer_id)
        return _success(command.request_id)

    async def redeliver(self, command: pb.RedeliverUnacknowledged) -> None:
        """Give messages of a consumer again."""
        known = self._consumers.get(command.consumer_id)
        if isinstance(known, ConsumerHandle):
            await known.redeliver(command)

    async def last_message(self, command: pb.GetLastMessageId) -> pb.Command:
        """Answer which message of a consumer's topic is the last one."""
        known = self._required(command.consumer_id)
        topic = self._gateway.topics.named(known.command.topic)
        found = await self._gateway.client.last_message(topic)
        last = None if found is None else pulsar_id(found)
        answer = pb.GetLastMessageIdResponse(request_id=command.request_id)
        answer.last_message_id.CopyFrom(last or NOTHING)
        if isinstance(known, ReaderHandle):
            answer.consumer_mark_delete_position.CopyFrom(known.passed)
        return pb.Command(get_last_message_id_response=answer)

    async def statistics(self, command: pb.ConsumerStats) -> pb.Command:
        """Answer with the numbers of a consumer."""
        known = self._required(command.consumer_id)
        if isinstance(known, ConsumerHandle):
            answer = await known.statistics()
        else:
            answer = pb.ConsumerStatsResponse(available_permits=known.permits)
        answer.request_id = command.request_id
        return pb.Command(consumer_stats_response=answer)

    # -- the end --------------------------------------------------------------------------------------

    def _leave_soon(self, number: int) -> None:
        known = self._consumers.pop(number, None)
        if known is not None:
            self._leave(_closed(known))

    def _leave_producer_soon(self, number: int) -> None:
        known = self._producers.pop(number, None)
        if known is not None:
            self._leave(_quietly(self._gateway.producers.release(*known)))

    def _leave(self, closing: Coroutine[None, None, None]) -> None:
        task = start_task(closing)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Close everything, when the connection has ended."""
        consumers, producers = tuple(self._consumers.values()), tuple(self._producers.values())
        self._consumers.clear()
        self._producers.clear()
        closing = [_closed(one) for one in consumers]
        closing += [_quietly(self._gateway.producers.release(topic, handle)) for topic, handle in producers]
        await asyncio.gather(*closing, *self._leaving)

    @contextmanager
    def _opened_once(self, kind: str, number: int) -> Iterator[None]:
        """Refuse a second handle of one number while the first is being opened, and too many handles."""
        if (kind, number) in self._opening:
            raise Refused(pb.SERVICE_NOT_READY, f"{kind} {number} is being opened")
        if len(self._producers) + len(self._consumers) + len(self._opening) >= self._gateway.limits.handles_max:
            raise Refused(pb.TOO_MANY_REQUESTS, "this connection has too many producers and consumers")
        task = asyncio.current_task()
        assert task is not None, "each request has a task"
        self._opening[kind, number] = task
        try:
            yield
        finally:
            del self._opening[kind, number]

    async def _stop_opening(self, kind: str, number: int) -> None:
        """
        Cancel an opening whose client does not wait for it any more, and wait for its end.

        Otherwise it would complete after the close, and hold the name or the subscription until the connection ends.
        """
        task = self._opening.get((kind, number))
        if task is None:
            return
        if not task.cancelling():  # a second cancellation would stop what the first one cleans up
            task.cancel()
        await asyncio.wait({task})


async def _closed(handle: ConsumerHandle | ReaderHandle) -> None:
    await _quietly(handle.close())


async def _quietly(closing: Coroutine[None, None, None]) -> None:
    """Log an error of closing: the client is gone, and what is held ends with the session at the latest."""
    try:
        await closing
    except Exception:
        _LOG.exception("a producer or consumer of a client could not be closed")


def _success(request_id: int) -> pb.Command:
    return pb.Command(success=pb.Success(request_id=request_id))
