"""Producers of one connection: they store what clients send, and confirm it when it is durable."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from txnframework.client import MessageID, Producer, TransactionPart
from txnframework.errors import OutcomeUnknown
from txnframework.runtime.tasks import start_task
from txnframework_pulsar.faults import Refused, send_code_of
from txnframework_pulsar.ids import UINT64, pulsar_id
from txnframework_pulsar.limits import Limits
from txnframework_pulsar.peer import Peer
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.batches import Outgoing, runs, unpack

_LOG = logging.getLogger(__name__)

FINAL = frozenset({pb.NOT_ALLOWED_ERROR})
"""The codes for which clients give a message up, instead of sending it again."""
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

    After a message that was not stored, and that the client will send again, nothing more is stored: ``opened`` stops
    (``stop_after_failure``), and the client learns that the producer was closed. It opens the producer again, and
    sends everything that was not confirmed again, in its order.
    """

    def __init__(self, opened: Producer, producer_id: int, limits: Limits, peer: Peer) -> None:
        self.opened = opened
        self.epoch = 0
        """How often the client has opened this producer again."""
        self._producer_id = producer_id
        self._limits = limits
        self._peer = peer
        self._ended = False
        self._pending: deque[_Pending] = deque()
        self._sends: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def closing(self) -> bool:
        """Whether the producer accepts no more messages."""
        return self._closing

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
            raise Refused(pb.SERVICE_NOT_READY, "the producer was closed")
        messages = unpack(metadata, payload, self._limits.message_bytes_max)
        # The coroutines start in this order, as tasks do, and the framework's producer keeps it.
        sends = [self._store(group, txn) for group in runs(messages)]
        pending = _Pending(done)
        self._pending.append(pending)
        task = start_task(self._confirm(command, sends, pending))
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
            if not self._ended:
                self._write(first.answer)
            first.done()

    def _write(self, answer: pb.Command) -> None:
        code = answer.send_error.error
        if not answer.HasField("send_error") or code in FINAL:
            self._peer.write(answer)
            return
        _LOG.info("a producer of %s ends: %s", self.opened.topic, answer.send_error.message)
        if code == pb.CHECKSUM_ERROR:
            self._peer.write(answer)  # the client looks whether it has the message whole
        self.end()

    def end(self) -> None:
        """Close the producer, and let the client open it again; later answers would be those of another one."""
        if not self._ended:
            self._ended = self._closing = True
            self._peer.end_producer(self._producer_id)

    def _store(self, group: Sequence[Outgoing], txn: TransactionPart | None) -> asyncio.Task[tuple[MessageID, ...]]:
        first = group[0]
        return start_task(
            self.opened.send_many(
                [one.value for one in group],
                key=first.key,
                headers=first.headers,
                sequence_id=first.sequence_id,
                txn=txn,
                deliver_at_ms=first.deliver_at_ms,
            )
        )

    async def _confirm(
        self, command: pb.Send, sends: list[asyncio.Task[tuple[MessageID, ...]]], pending: _Pending
    ) -> None:
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        failed = next((one for one in outcomes if isinstance(one, BaseException)), None)
        if failed is not None:
            error = failed if isinstance(failed, Exception) else OutcomeUnknown("the send was cancelled")
            self._answer(pending, refusal(command, error))
            return
        first = next((one[0] for one in outcomes if isinstance(one, tuple)), None)
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
