"""One connection: reads commands, and answers them in the order that the protocol wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from txnframework.errors import TxnFrameworkError
from txnframework.runtime.tasks import start_task
from txnframework_pulsar.faults import Refused, code_of
from txnframework_pulsar.handles import Gateway, Handles
from txnframework_pulsar.limits import HANDSHAKE_BYTES_MAX
from txnframework_pulsar.peer import Peer
from txnframework_pulsar.readers import ReaderHandle
from txnframework_pulsar.transactions import failed_answer
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import BadMessage, held_bytes
from txnframework_pulsar.wire.frames import (
    SIZE_BYTES,
    BadChecksum,
    BadFrame,
    Frame,
    parse_frame,
    payload_of,
    size_of,
)

_LOG = logging.getLogger(__name__)

PROTOCOL_VERSION = 19
"""The latest version that the gateway speaks; version 20 and 21 add watching topics and moving them."""
SERVER_VERSION = "txnframework-pulsar"
NO_REQUEST = 2**64 - 1
"""The request of an error that answers none."""

OF_TRANSACTIONS = frozenset(
    {
        "tc_client_connect_request",
        "watch_tc_assignments",
        "new_txn",
        "add_partition_to_txn",
        "add_subscription_to_txn",
        "end_txn",
    }
)
UNANSWERED = frozenset({"redeliver_unacknowledged_messages", "scalable_topic_close", "watch_tc_assignments_close"})
LARGE_ANSWERS = frozenset({"get_schema", "get_topics_of_namespace", "scalable_topic_lookup"})
"""Requests that are answered one at a time, when the client has read most of what was written to it."""
OF_THE_SERVING = OF_TRANSACTIONS | {"producer", "subscribe", "scalable_topic_subscribe"}
"""The requests that only the gateway carries out whose turn it is; for the errors, clients look it up again."""

Handler = Callable[[Any], Awaitable[pb.Command | None]]


class Connection:
    """
    A client's connection.

    Whatever the client sends, the memory that it takes is bounded: frames by their size, sends, requests, producers and
    consumers by their number. Large answers wait until the client has read the earlier ones. While a bound is reached
    the connection is not read. Bytes that are not frames of the protocol end the connection with an error that says
    what was wrong.

    ``accepted`` is called when the client has said who it is.
    """

    def __init__(
        self,
        gateway: Gateway,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        accepted: Callable[[], object],
    ) -> None:
        self._gateway = gateway
        self._limits = gateway.limits
        self._reader = reader
        self._writer = writer
        self._accepted = accepted
        self._peer = Peer(writer)
        self._handles = Handles(gateway, self._peer)
        self._requests: set[asyncio.Task[None]] = set()
        self._sends = 0
        self._bytes = 0
        self._acks = 0
        self._user = ""
        self._room = asyncio.Event()
        self._large = asyncio.Lock()
        self._heard = asyncio.get_running_loop().time()
        self._watching: asyncio.TimerHandle | None = None
        self._serving: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve the client until it leaves, or ``stop`` is called."""
        self._serving = asyncio.current_task()
        try:
            await self._handshake()
            await self._commands()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left
        except (BadFrame, Refused, TimeoutError) as error:
            code = error.code if isinstance(error, Refused) else pb.UNKNOWN_ERROR
            reason = str(error) or "the client said nothing for too long"
            _LOG.info("a connection is closed: %s", reason)
            self._peer.write(pb.Command(error=pb.Error(request_id=NO_REQUEST, error=code, message=reason)))
        finally:
            self._serving = None
            self._peer.flush()
            self._writer.close()
            try:
                await self._end()
            finally:
                await self._closed()

    async def _end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for request in tuple(self._requests):
            request.cancel()
        if self._requests:
            await asyncio.wait(set(self._requests))
        await self._handles.close()

    async def _closed(self) -> None:
        """Wait until the client has read what was written, but not long: a client that does not read keeps memory."""
        try:
            async with asyncio.timeout(self._limits.leaving_s):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self.abort()
        except asyncio.CancelledError:
            self.abort()
            raise

    def stop(self) -> None:
        """Let ``serve`` end; what it does at the end is not interrupted."""
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None

    def abort(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()

    # -- reading --------------------------------------------------------------------------------------

    async def _frame(self, bytes_max: int) -> Frame:
        size = size_of(await self._reader.readexactly(SIZE_BYTES), bytes_max)
        return parse_frame(await self._reader.readexactly(size))

    async def _handshake(self) -> None:
        async with asyncio.timeout(self._limits.handshake_s):
            command = (await self._frame(HANDSHAKE_BYTES_MAX)).command
        if not command.HasField("connect"):
            raise BadFrame("the first command is not CONNECT")
        if command.connect.proxy_to_broker_url:
            raise Refused(pb.NOT_ALLOWED_ERROR, "the gateway does not act as a proxy")
        self._user = self._gateway.access.user_of(command.connect)
        self._accepted()
        flags = pb.FeatureFlags(
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_scalable_topics=True,
            supports_tc_metadata_discovery=True,
        )
        connected = pb.Connected(
            server_version=SERVER_VERSION,
            protocol_version=min(PROTOCOL_VERSION, command.connect.protocol_version),
            max_message_size=self._limits.message_bytes_max,
            feature_flags=flags,
        )
        self._peer.write(pb.Command(connected=connected))

    async def _commands(self) -> None:
        self._watch()
        while True:
            frame = await self._frame(self._limits.frame_bytes_max)
            self._heard = asyncio.get_running_loop().time()
            await self._handle(frame)
            self._peer.flush()
            await self._writer.drain()

    def _watch(self) -> None:
        """Ask a silent client for a sign of life, and give it up after twice the time."""
        silent_s = asyncio.get_running_loop().time() - self._heard
        if silent_s >= 2 * self._limits.keep_alive_s:
            self.abort()
            return
        if silent_s >= self._limits.keep_alive_s:
            self._peer.write(pb.Command(ping=pb.Ping()))
        self._watching = asyncio.get_running_loop().call_later(self._limits.keep_alive_s, self._watch)

    async def _handle(self, frame: Frame) -> None:
        command = frame.command
        if command.HasField("send"):
            await self._send(command.send, frame)
        elif command.HasField("flow"):
            consumer = self._handles.consumer(command.flow.consumer_id)
            if consumer is not None:
                consumer.permit(command.flow.message_permits)
        elif command.HasField("ack"):
            await self._acknowledge(command.ack)
        elif command.HasField("ping"):
            self._peer.write(pb.Command(pong=pb.Pong()))
        elif not (command.HasField("pong") or command.HasField("auth_response")):
            await self._request(command)

    # -- messages -------------------------------------------------------------------------------------

    async def _send(self, command: pb.Send, frame: Frame) -> None:
        size = len(frame.rest)
        while self._sends >= self._limits.sends_in_flight_max or self._bytes >= self._limits.bytes_in_flight_max:
            self._room.clear()
            await self._room.wait()
        producer = self._handles.producer(command.producer_id)
        if producer is None:
            return  # it was closed while the message was on its way; its client sends it again with the next one

        def done() -> None:
            self._sends -= 1
            self._bytes -= size
            self._room.set()

        self._sends += 1
        self._bytes += size
        try:
            if command.is_chunk:
                raise BadMessage("messages in chunks are not supported: switch chunking off")
            metadata, payload = payload_of(frame.rest)
            held = held_bytes(metadata, payload, self._limits.message_bytes_max)
            self._bytes += held - size
            size = held
            producer.send(command, metadata, payload, self._gateway.transactions.named(command, self._user), done)
        except (TxnFrameworkError, Refused, BadMessage, BadChecksum) as error:
            producer.refuse(command, error, done)

    async def _acknowledge(self, command: pb.Ack) -> None:
        while self._acks >= self._limits.acks_in_flight_max:
            self._room.clear()
            await self._room.wait()
        consumer = self._handles.consumer(command.consumer_id)
        if consumer is None:
            return  # its messages are given again
        if isinstance(consumer, ReaderHandle):
            consumer.acknowledge(command)
            return
        count = max(1, len(command.message_id))

        def done() -> None:
            self._acks -= count
            self._room.set()

        try:
            txn = self._gateway.transactions.named(command, self._user)
            self._acks += count
            consumer.acknowledge(command, txn, done)
        except (TxnFrameworkError, Refused) as error:
            answer = pb.AckResponse(
                consumer_id=command.consumer_id,
                request_id=command.request_id,
                txnid_most_bits=command.txnid_most_bits,
                txnid_least_bits=command.txnid_least_bits,
                error=code_of(error),
                message=str(error),
            )
            self._peer.write(pb.Command(ack_response=answer))

    # -- requests -------------------------------------------------------------------------------------

    async def _request(self, command: pb.Command) -> None:
        """Begin to answer a request; requests are answered in the order in which they end."""
        fields = [one for one in command.ListFields() if one[0].name != "type"]
        handler = self._handlers().get(fields[0][0].name) if len(fields) == 1 else None
        if handler is None:
            raise BadFrame(f"command {command.type} is not one of the protocol, or is not supported")
        field, request = fields[0]
        while len(self._requests) >= self._limits.requests_max:
            await asyncio.wait(set(self._requests), return_when=asyncio.FIRST_COMPLETED)
        task = start_task(self._answer(field.name, request, handler))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    def _handlers(self) -> dict[str, Handler]:
        handles, topics, transactions = self._handles, self._gateway.topics, self._gateway.transactions
        scalable = self._gateway.scalable
        return {
            "partition_metadata": topics.partitions,
            "lookup_topic": topics.lookup,
            "get_topics_of_namespace": topics.listed,
            "producer": handles.open_producer,
            "close_producer": handles.close_producer,
            "subscribe": handles.subscribe,
            "unsubscribe": handles.unsubscribe,
            "close_consumer": handles.close_consumer,
            "redeliver_unacknowledged_messages": handles.redeliver,
            "seek": handles.seek,
            "get_last_message_id": handles.last_message,
            "consumer_stats": handles.statistics,
            "get_schema": self._gateway.schemas.get,
            "get_or_create_schema": self._gateway.schemas.get_or_create,
            "tc_client_connect_request": transactions.connect,
            "new_txn": lambda one: transactions.begin(one, self._user),
            "add_partition_to_txn": lambda one: transactions.add_partitions(one, self._user),
            "add_subscription_to_txn": lambda one: transactions.add_subscriptions(one, self._user),
            "end_txn": lambda one: transactions.end(one, self._user),
            "scalable_topic_lookup": scalable.lookup,
            "scalable_topic_close": _nothing,
            "scalable_topic_subscribe": handles.subscribe_stream,
            "watch_tc_assignments": scalable.coordinators,
            "watch_tc_assignments_close": _nothing,
        }

    def _require_turn(self, name: str) -> None:
        if name in OF_THE_SERVING and not self._gateway.turn.is_held:
            code = pb.TRANSACTION_COORDINATOR_NOT_FOUND if name in OF_TRANSACTIONS else pb.SERVICE_NOT_READY
            raise Refused(code, f"this gateway does not serve now: {self._gateway.turn.holder or 'none'} does")

    async def _answer(self, name: str, request: Any, handler: Handler) -> None:
        if name not in LARGE_ANSWERS:
            await self._carry_out(name, request, handler)
            return
        async with self._large:
            await self._peer.drained()
            await self._carry_out(name, request, handler)

    async def _carry_out(self, name: str, request: Any, handler: Handler) -> None:
        try:
            self._require_turn(name)
            answer = await handler(request)
        except (TxnFrameworkError, Refused) as error:
            answer = _failure(name, request, code_of(error), str(error))
        except Exception as error:
            _LOG.exception("the request %s failed", name)
            answer = _failure(name, request, pb.UNKNOWN_ERROR, f"{type(error).__name__} in the gateway")
        if answer is not None:
            self._peer.write(answer)


async def _nothing(_: Any) -> None:
    """Do nothing, where a client no longer wants what it is never told."""


def _failure(name: str, request: Any, code: pb.ErrorCode, reason: str) -> pb.Command | None:
    """Return the answer to a request that failed."""
    if name in UNANSWERED:
        return None
    if name == "watch_tc_assignments":
        watched = pb.WatchCoordinatorsUpdate(watch_id=request.watch_id, error=code, message=reason)
        return pb.Command(watch_tc_assignments_update=watched)
    if name == "scalable_topic_lookup":
        update = pb.ScalableTopicUpdate(session_id=request.session_id, error=code, message=reason)
        return pb.Command(scalable_topic_update=update)
    if name in ("new_txn", "add_partition_to_txn", "add_subscription_to_txn", "end_txn"):
        return failed_answer(f"{name}_response", request, code, reason)
    number = request.request_id
    if name == "tc_client_connect_request":
        failed = pb.TcClientConnectResponse(request_id=number, error=code, message=reason)
        return pb.Command(tc_client_connect_response=failed)
    if name == "lookup_topic":
        lookup = pb.LookupTopicResponse(
            request_id=number, response=pb.LookupTopicResponse.FAILED, error=code, message=reason
        )
        return pb.Command(lookup_topic_response=lookup)
    if name == "partition_metadata":
        metadata = pb.PartitionMetadataResponse(
            request_id=number, response=pb.PartitionMetadataResponse.FAILED, error=code, message=reason
        )
        return pb.Command(partition_metadata_response=metadata)
    if name in ("get_schema", "get_or_create_schema"):
        command = pb.Command()
        answer = getattr(command, f"{name}_response")
        answer.request_id, answer.error_code, answer.error_message = number, code, reason
        return command
    if name == "scalable_topic_subscribe":
        subscribed = pb.ScalableTopicSubscribeResponse(request_id=number, error=code, message=reason)
        return pb.Command(scalable_topic_subscribe_response=subscribed)
    return pb.Command(error=pb.Error(request_id=number, error=code, message=reason))
