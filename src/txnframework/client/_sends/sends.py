"""The sends of one producer: checks, sequence ids, and the quota of messages in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Generic, NamedTuple

from txnframework.broker import Host
from txnframework.client._arguments import INT64_MAX
from txnframework.client._base import DELETION_ERRORS, RetryPolicy, raise_if_deleted, require_open
from txnframework.client._content_types import T_contra
from txnframework.client._messages import MessageID
from txnframework.client._observations import observed_send, with_added_headers
from txnframework.client._sends.batches import OutgoingMessage, SendCall, SendQuota
from txnframework.client._sends.encoded_values import HeaderPairs, encode_all
from txnframework.client._sends.message_checks import (
    PreparedMessages,
    SharedFields,
    UnnumberedMessage,
    check_messages,
)
from txnframework.client._sends.router import SegmentRouter
from txnframework.client._transaction import TransactionPart, operation_in
from txnframework.errors import Closed, InvalidInput
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import Branch
from txnframework.model.layout import Layout
from txnframework.model.names import SegmentName, TopicName

if TYPE_CHECKING:
    from txnframework.serializers import Serializer

CLOCK_SHIFT_BITS = 20
"""The sequence ids of two uses of a name stay apart up to a million messages per millisecond."""


class JointSends(NamedTuple):
    """
    Routed messages of one call, which hold its quota until it is given up; by segment, in the order of sending.

    ``life``: the life of the topic by which they were routed.
    """

    life: int
    call: SendCall
    by_segment: dict[str, list[OutgoingMessage]]


class ProducerSends(Generic[T_contra]):
    """Sends messages of one producer, as operations of transactions or outside of them; see ``Producer``."""

    def __init__(
        self,
        host: Host,
        retry: RetryPolicy,
        target: TopicName | SegmentName,
        layout: Layout,
        name: str | None,
        serializer: Serializer[T_contra] | None,
        stop_after_failure: bool,
    ) -> None:
        environment = host.environment
        self.name = name or f"producer-{environment.random_bits(64):016x}"
        self.is_closed = False
        # A generated name begins at 0. A chosen name may have been used before. Its new sequence ids must differ from
        # the earlier ones, or new messages would be taken for copies.
        fresh = environment.now_ms() << CLOCK_SHIFT_BITS | environment.random_bits(CLOCK_SHIFT_BITS)
        self._next_sequence = fresh if name else 0
        self._serializer = serializer
        self._host = host
        self._bounds = host.config.client
        self._router = SegmentRouter(host, retry, target, layout, self.name, stop_after_failure)
        self._topic = str(target if isinstance(target, TopicName) else target.topic)
        self._backlog_quota = host.backlog_quotas.of(layout.topic)
        self._quota = SendQuota(self._bounds.sends_in_flight_max)
        self._sends = 0

    async def close(self) -> None:
        """Wait for the sends in flight, and accept no further ones; a second call is allowed."""
        self.is_closed = True
        async with self._quota.turn:
            pass  # all earlier calls of ``send`` have acquired their quota
        await self._router.close()
        await self._quota.all_given_back()  # by the messages that the router does not know: those of joint steps

    @property
    def current_topic(self) -> TopicName:
        """The topic to which the messages go, which may have migrated since the producer was opened."""
        return self._router.layout.topic

    async def catch_up(self) -> None:
        """Follow a change of the topic that a step has met."""
        await self._router.catch_up()

    def require_open(self) -> None:
        """Raise Closed if the producer was closed."""
        if self.is_closed:
            raise Closed(f"producer {self.name} was closed")

    async def send_planned(self, planned: Sequence[PreparedMessages], txn: TransactionPart) -> tuple[MessageID, ...]:
        """Send messages that were prepared one by one, in order and together."""
        return await self._send_in(txn, lambda: planned)

    def observed(self, message: PreparedMessages, branch: Branch | None, until: ExitStack) -> PreparedMessages:
        """Report one call that sends until the stack ends; return its messages with the observer's headers."""
        if self._host.observer is None:
            return message
        report = observed_send(self._host.observer, self._topic, message.values, branch, message.context)
        observation = until.enter_context(report)
        common, tagged = with_added_headers(observation, message.common, message.tagged, message.bytes_left)
        return PreparedMessages(message.values, common, tagged, 0)

    async def begin_joint(
        self, messages: Sequence[PreparedMessages], branch: Branch, principal: str
    ) -> JointSends | None:
        """
        Number messages that the only step of their transaction is to append, and route them.

        None if they need the usual steps: there are more than may be in flight, or earlier messages of the producer are
        on their way to one of the segments.

        :raises Closed: the producer was closed.
        """
        self.require_open()
        if len(messages) > self._bounds.sends_in_flight_max:
            return None
        call = SendCall(self._quota, len(messages))
        routed: dict[str, list[OutgoingMessage]] | None = None
        try:
            async with self._quota.turn:
                if self._backlog_quota is not None:
                    await self._backlog_quota.require_room()
                taken = 0
                while taken < len(messages):
                    taken += await call.acquire(len(messages) - taken)
                outgoing = tuple(self._outgoing(_each(messages), branch, principal, call, 0))
                routed = self._router.joint_routes(outgoing)
        finally:
            if routed is None:
                call.give_up()
        return None if routed is None else JointSends(self._router.layout.life, call, routed)

    async def send(
        self, values: Sequence[T_contra | None], common: SharedFields, txn: TransactionPart | None
    ) -> tuple[MessageID, ...]:
        """Send as one operation of a transaction, or outside of transactions."""
        return await self._send_in(txn, lambda: (self.prepared(values, common),))

    def planned(self, value: T_contra | None, common: SharedFields) -> PreparedMessages:
        """Encode and check a message that is sent later, and reported as if it was sent now."""
        self.require_open()
        return self.prepared((value,), common, None if self._host.observer is None else copy_context())

    def prepared(
        self, values: Sequence[T_contra | None], common: SharedFields, context: Context | None = None
    ) -> PreparedMessages:
        """Encode and check messages; ``context``: see ``PreparedMessages``."""
        stored: Sequence[bytes | None] = values  # type: ignore[assignment]  # bytes, as there is no serializer
        tagged: Sequence[HeaderPairs] | None = None
        if self._serializer is not None:
            stored, tagged = encode_all(self._serializer, values, common.headers)
        bytes_left = check_messages(stored, common, tagged, self._bounds.message_bytes_max)
        return PreparedMessages(stored, common, tagged, bytes_left, context)

    async def _send_in(
        self, txn: TransactionPart | None, prepare: Callable[[], Sequence[PreparedMessages]]
    ) -> tuple[MessageID, ...]:
        try:
            with operation_in(txn, self._host) as branch:
                self.require_open()
                if self._router.stopped_by is not None and branch is None:
                    raise Closed(self._router.stopped_by)
                require_open(self._host)
                prepared = prepare()
                principal = "" if txn is None else txn.principal
                if self._host.observer is None:
                    return await self._sent(_each(prepared), branch, principal)
                with ExitStack() as until:
                    observed = [self.observed(one, branch, until) for one in prepared]
                    return await self._sent(_each(observed), branch, principal)
        except DELETION_ERRORS as error:
            await raise_if_deleted(self._host, (self._router.layout,), error)
            raise

    async def _sent(
        self, messages: Sequence[UnnumberedMessage], branch: Branch | None, principal: str
    ) -> tuple[MessageID, ...]:
        """Pass the messages to the segments as the quota permits, and return their ids."""
        sending = SendCall(self._quota, len(messages))
        try:
            async with self._quota.turn:
                if self._backlog_quota is not None:
                    await self._backlog_quota.require_room()
                at = 0
                while at < len(messages):
                    upto = at + await sending.acquire(len(messages) - at)
                    for one in self._outgoing(messages[at:upto], branch, principal, sending, at):
                        self._router.put(one)
                    at = upto
            return await sending.ended()
        except BaseException as error:
            # Also a call that was cancelled: whether its messages are stored is unknown.
            if branch is None:
                self._router.fail_later(error)
            raise
        finally:
            sending.give_up()

    def _outgoing(
        self, messages: Sequence[UnnumberedMessage], branch: Branch | None, principal: str, call: SendCall, at: int
    ) -> Iterator[OutgoingMessage]:
        """
        Return numbered messages of a call, of which the first is message ``at``.

        Messages are numbered just before they are routed, so that the sequence ids within one segment grow.
        """
        now_ms = self._host.environment.now_ms()
        for number, one in enumerate(messages, at):
            sequence = self._next_sequence if one.sequence_id is None else one.sequence_id
            if sequence > INT64_MAX:
                raise InvalidInput(
                    f"producer {self.name} has used the last sequence id, 2**63 - 1: send under another name, or choose"
                    " the sequence ids"
                )
            self._next_sequence = max(self._next_sequence, sequence + 1)
            self._sends += 1
            message = EntryMessage(one.key, one.value, one.headers, sequence, now_ms)
            chosen = one.sequence_id is not None
            yield OutgoingMessage(message, branch, chosen, call, number, self._sends, principal=principal)


def _each(prepared: Sequence[PreparedMessages]) -> list[UnnumberedMessage]:
    return prepared[0].each() if len(prepared) == 1 else [message for one in prepared for message in one.each()]
