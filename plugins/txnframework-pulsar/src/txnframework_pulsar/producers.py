"""Producers of one connection: they store what clients send, and confirm it when it is durable."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from txnframework.client import Client, MessageID, Producer, TransactionPart
from txnframework.errors import OutcomeUnknown
from txnframework_pulsar.ends import last_sequence
from txnframework_pulsar.faults import Refused, send_code_of
from txnframework_pulsar.ids import UINT64, pulsar_id
from txnframework_pulsar.limits import Limits
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import Outgoing, unpack

NO_ID = pb.MessageId(ledger_id=UINT64 - 1, entry_id=UINT64 - 1, partition=-1)
"""In receipts of messages whose position is not known before the commit."""


@dataclass(eq=False, slots=True)
class _Pending:
    """A send that is not answered; ``done`` is called after its answer was written."""

    done: Callable[[], None]
    answer: pb.Command | None = None


class ProducerHandle:
    """
    A producer of a client.

    Sends begin in the order in which the client wrote them. Each is confirmed, or refused, when its outcome and those
    of all earlier sends are known: a client closes the connection if an answer is ahead of its oldest send. Sequence
    ids are those of the client, so a message that is sent again after a lost connection is stored once.
    """

    def __init__(self, opened: Producer, producer_id: int, limits: Limits, write: Callable[[pb.Command], None]) -> None:
        self.opened = opened
        self._producer_id = producer_id
        self._limits = limits
        self._write = write
        self._pending: deque[_Pending] = deque()
        self._sends: set[asyncio.Task[None]] = set()
        self._closing = False

    def send(
        self,
        command: pb.Send,
        metadata: pb.MessageMetadata,
        payload: bytes,
        txn: TransactionPart | None,
        done: Callable[[], None],
    ) -> None:
        """
        Begin to store a message or a batch; ``done`` is called at the end, after the client was answered.

        If this raises, nothing was begun, and ``refuse`` answers.

        :raises Refused: the producer is being closed.
        :raises BadMessage: the message cannot be stored.
        """
        if self._closing:
            raise Refused(pb.PRODUCER_FENCED, "the producer was closed")
        messages = unpack(metadata, payload, self._limits.message_bytes_max)
        # The coroutines start in this order, as tasks do, and the framework's producer keeps it.
        sends = [self._store(one, txn) for one in messages]
        pending = _Pending(done)
        self._pending.append(pending)
        task = asyncio.ensure_future(self._confirm(command, sends, pending))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    def refuse(self, command: pb.Send, error: Exception, done: Callable[[], None]) -> None:
        """Answer in its turn that a message is not stored; ``done`` is called then."""
        pending = _Pending(done)
        self._pending.append(pending)
        self._answer(pending, refusal(command, error))

    def _answer(self, pending: _Pending, answer: pb.Command) -> None:
        """Note the outcome of a send, and write the answers that no earlier send holds up."""
        pending.answer = answer
        while self._pending and self._pending[0].answer is not None:
            first = self._pending.popleft()
            assert first.answer is not None, "it was checked"
            self._write(first.answer)
            first.done()

    def _store(self, message: Outgoing, txn: TransactionPart | None) -> asyncio.Task[MessageID]:
        return asyncio.ensure_future(
            self.opened.send(
                message.value,
                key=message.key,
                headers=message.headers,
                sequence_id=message.sequence_id,
                txn=txn,
                deliver_at_ms=message.deliver_at_ms,
            )
        )

    async def _confirm(self, command: pb.Send, sends: list[asyncio.Task[MessageID]], pending: _Pending) -> None:
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        failed = next((one for one in outcomes if isinstance(one, BaseException)), None)
        if failed is not None:
            error = failed if isinstance(failed, Exception) else OutcomeUnknown("the send was cancelled")
            self._answer(pending, refusal(command, error))
            return
        first = next((one for one in outcomes if isinstance(one, MessageID)), None)
        receipt = pb.SendReceipt(
            producer_id=self._producer_id,
            sequence_id=command.sequence_id,
            message_id=(None if first is None else pulsar_id(first)) or NO_ID,
            highest_sequence_id=command.highest_sequence_id,
        )
        self._answer(pending, pb.Command(send_receipt=receipt))

    async def close(self) -> None:
        """Wait for the sends in flight, and leave."""
        self._closing = True
        while self._sends:
            await asyncio.wait(set(self._sends))
        await self.opened.close()


def refusal(command: pb.Send, error: Exception) -> pb.Command:
    """Return the answer for a message, or a batch, that was not stored; clients know a batch by its last message."""
    code = send_code_of(error, command.HasField("txnid_least_bits") or command.HasField("txnid_most_bits"))
    last = max(command.sequence_id, command.highest_sequence_id)
    answer = pb.SendError(producer_id=command.producer_id, sequence_id=last, error=code, message=str(error))
    return pb.Command(send_error=answer)


class ProducerNames:
    """The producers that are connected to this gateway: one per topic and name, as their sequence ids are shared."""

    def __init__(self) -> None:
        self._connected: dict[tuple[str, str], tuple[ProducerHandle, int]] = {}

    def claim(self, topic: str, handle: ProducerHandle, epoch: int, generated: bool) -> ProducerHandle | None:
        """
        Register a producer, and return the earlier one that it replaces.

        A client that lost its connection comes back under its generated name with a higher epoch.

        :raises Refused: another producer of this name is connected.
        """
        key = (topic, handle.opened.name)
        earlier = self._connected.get(key)
        if earlier is not None and not (generated and epoch > earlier[1]):
            raise Refused(pb.PRODUCER_BUSY, f"producer {handle.opened.name} is connected to {topic} already")
        self._connected[key] = (handle, epoch)
        return None if earlier is None else earlier[0]

    def release(self, topic: str, handle: ProducerHandle) -> None:
        """Forget a producer, unless another one has replaced it."""
        key = (topic, handle.opened.name)
        known = self._connected.get(key)
        if known is not None and known[0] is handle:
            del self._connected[key]


async def open_producer(
    client: Client,
    topics: Topics,
    names: ProducerNames,
    command: pb.Producer,
    limits: Limits,
    write: Callable[[pb.Command], None],
) -> tuple[str, ProducerHandle, int]:
    """
    Open the producer that a client asks for; return its topic, the producer, and the last sequence id of its name.

    A client that chooses a name counts on from that sequence id. Otherwise its first messages would be taken for copies
    of those that the name sent before.

    :raises Refused: the name is in use, or the client wants to be the only producer.
    """
    if command.producer_access_mode != pb.Producer.SHARED:
        raise Refused(pb.NOT_ALLOWED_ERROR, "producers with exclusive access are not supported")
    topic, layout = await topics.opened(command.topic)
    if command.initial_subscription_name:
        await client.subscribe(topic, command.initial_subscription_name)
    opened = await client.producer(topic, name=command.producer_name or None)
    handle = ProducerHandle(opened, command.producer_id, limits, write)
    try:
        replaced = names.claim(str(topic), handle, command.epoch, not command.user_provided_producer_name)
        if replaced is not None:
            await replaced.close()
        last = await last_sequence(client.host, layout, opened.name) if command.producer_name else None
    except BaseException:
        names.release(str(topic), handle)
        await handle.close()
        raise
    return str(topic), handle, -1 if last is None else last
