"""Producers: idempotent and batching sends, routed by hash, which follow splits inside a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self

from txnframework.broker import Host
from txnframework.client._arguments import INT64_MAX, MILLISECONDS_MAX, header_pairs, several_values, whole_number
from txnframework.client._base import DELETION_ERRORS, RetryPolicy, close_after, raise_if_deleted, require_open
from txnframework.client._content_types import T_contra
from txnframework.client._messages import MessageID
from txnframework.client._observations import observed_send, with_added_headers
from txnframework.client._sends.batches import OutgoingMessage, SendCall, SendQuota, hash_of
from txnframework.client._sends.encoded_values import HeaderPairs, encode_all
from txnframework.client._sends.message_checks import SharedFields, check_messages
from txnframework.client._sends.segment_sender import BeyondWindow, SegmentSender
from txnframework.client._transaction import TransactionPart, operation_in
from txnframework.errors import Closed, InvalidInput, LedgerSealed, TopicNotFound
from txnframework.model.delays import delayed_until
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import Branch
from txnframework.model.layout import Layout, SegmentState
from txnframework.model.names import SegmentName, TopicName

if TYPE_CHECKING:
    from txnframework.serializers import Serializer

CLOCK_SHIFT_BITS = 20
"""The sequence ids of two uses of a name stay apart up to a million messages per millisecond."""


class Producer(Generic[T_contra]):
    """
    Sends to one topic or to one segment; created by ``Client.producer``.

    ``T_contra`` is the type of the contents, which its serializer encodes. Without a serializer, ``Producer`` means
    ``Producer[bytes]``, and values are stored as they are.

    Sends are idempotent: repeating a send with the same sequence id stores the message once, from any process that uses
    the same producer name. This holds while the message is among the producer's last messages of its segment: 10,000 by
    default, ``deduplication_window_sequences`` of the ledger store. An older message is stored again; the metric
    ``txnframework_sends_beyond_window_total`` counts these.

    Concurrent sends share entries. Messages with one key keep their order if all go through one producer. With several
    producers, await each send before the next one with that key.
    """

    def __init__(
        self,
        host: Host,
        retry: RetryPolicy,
        target: TopicName | SegmentName,
        layout: Layout,
        name: str | None,
        serializer: Serializer[T_contra] | None = None,
        stop_after_failure: bool = False,
    ) -> None:
        environment = host.environment
        self.topic = str(target)
        self.name = name or f"producer-{environment.random_bits(64):016x}"
        # A generated name begins at 0. A chosen name may have been used before. Its new sequence ids must differ from
        # the earlier ones, or new messages would be taken for copies.
        fresh = environment.now_ms() << CLOCK_SHIFT_BITS | environment.random_bits(CLOCK_SHIFT_BITS)
        self._next_sequence = fresh if name else 0
        self._serializer = serializer
        self._host = host
        self._retry = retry
        self._bounds = host.config.client
        self._only = target if isinstance(target, SegmentName) else None
        self._follow(layout)
        self._senders: dict[int, SegmentSender] = {}
        self._topic = str(target if isinstance(target, TopicName) else target.topic)
        self._beyond = BeyondWindow(host.metrics, self._topic, self.name)
        self._backlog_quota = host.backlog_quotas.of(layout.topic)
        self._quota = SendQuota(self._bounds.sends_in_flight_max)
        self._sends = 0
        self._rerouting: asyncio.Task[None] | None = None
        self._closed = False
        self._stops_after_failure = stop_after_failure
        # Why later messages are refused, after one that was not stored. A text, because an error that is raised many
        # times keeps the frames of all callers.
        self._stopped_by: str | None = None

    def __repr__(self) -> str:
        return f"<Producer {self.name} of {self.topic}{', closed' if self._closed else ''}>"

    async def send(
        self,
        value: T_contra | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
    ) -> MessageID:
        """
        Send a message, and return its id when it is durable.

        :param value: the content, of the type that the serializer encodes; None sends a null. For compaction, and for
            programs that keep the latest value of each key, a null deletes ``key``. A null differs from an empty value.
        :param key: selects the segment and groups messages for compaction; default: no key.
        :param headers: names and values that are stored with the message.
        :param sequence_id: identifies the message among those of this producer name. A caller that chooses the ids must
            increase them from message to message. To repeat a message, send it with the same id while the id is within
            the deduplication window. Default: the producer counts.
        :param txn: the transaction that the message belongs to; default: none.
        :param deliver_at_ms: when to deliver the message at the earliest, in ms since 1970. Subscription types without
            any order (``shared``) hold the message back; other types and readers get it at once. It is stored in the
            header ``txnframework-deliver-at-ms``. Default: no delay.
        :param deliver_after_ms: the same, in ms from now by this process's clock; give one of the two.
        :raises InvalidInput: the message is too large, the sequence id or the delay is out of range, or the serializer
            does not encode the value.
        :raises TransactionConflict: the transaction has ended, or another open transaction holds a copy of this
            message.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing was stored.
        :raises BacklogQuotaExceeded: a subscription is too far behind; nothing was stored.
        :raises OutcomeUnknown: the message may be stored, as after a cancelled call; send it again with the same
            sequence id.
        """
        pairs = self._headers(headers, deliver_at_ms, deliver_after_ms)
        (sent,) = await self._send((value,), SharedFields(key, pairs, sequence_id), txn)
        return sent

    async def send_many(
        self,
        values: Iterable[T_contra | None],
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        txn: TransactionPart | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
    ) -> tuple[MessageID, ...]:
        """
        Send messages in order, in as few entries as possible, and return their ids.

        Errors are those of ``send``, and are raised after all the messages have been handled. If the messages of one
        call go to several segments, choosing the sequence id makes them share fewer entries.

        :param values: the contents, as for ``send``.
        :param key: the key of every message.
        :param headers: the headers of every message.
        :param sequence_id: the id of the first message, as for ``send``; the others count on from it. The next call
            must use ``sequence_id`` plus the number of messages, or more.
        :param txn: the transaction that the messages belong to; default: none.
        :param deliver_at_ms: when to deliver the messages at the earliest, as for ``send``.
        :param deliver_after_ms: the same, in ms from now.
        :raises InvalidInput: as for ``send``; if one of the messages is too large, none is sent.
        :raises OutcomeUnknown: some or all of the messages may be stored. Send the same messages again, in the same
            order and with the same sequence id. Stored messages are confirmed and not stored again.
        """
        pairs = self._headers(headers, deliver_at_ms, deliver_after_ms)
        return await self._send(several_values(values), SharedFields(key, pairs, sequence_id), txn)

    def _headers(
        self, given: Mapping[str, bytes] | None, at_ms: int | None, after_ms: int | None
    ) -> tuple[tuple[str, bytes], ...]:
        """Return the headers in their stored form, with the delay."""
        pairs = () if given is None else header_pairs(given)
        if at_ms is None and after_ms is None:
            return pairs
        if at_ms is not None and after_ms is not None:
            raise InvalidInput("give deliver_at_ms or deliver_after_ms, not both")
        if after_ms is not None:
            now_ms = self._host.environment.now_ms()
            at_ms = now_ms + whole_number(after_ms, "deliver_after_ms", 0, MILLISECONDS_MAX - now_ms)
        return delayed_until(pairs, whole_number(at_ms, "deliver_at_ms", 0, MILLISECONDS_MAX))

    async def close(self) -> None:
        """
        Wait for the sends in flight, then release resources; a second call is allowed.

        If the caller is cancelled, the producer accepts no further sends, and those in flight continue.
        """
        self._closed = True
        async with self._quota.turn:
            pass  # all earlier calls of ``send`` have acquired their quota
        while self._rerouting is not None or any(sender.busy for sender in self._senders.values()):
            if self._rerouting is not None:
                await asyncio.wait({self._rerouting})
            for sender in tuple(self._senders.values()):
                await sender.idle()
        # No task is left that could send the waiting messages.
        for sender in self._senders.values():
            sender.give_up(Closed(f"producer {self.name} was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_after(error, self.close)

    async def _send(
        self, values: Sequence[T_contra | None], common: SharedFields, txn: TransactionPart | None
    ) -> tuple[MessageID, ...]:
        """Send as one operation of a transaction, or outside of transactions."""
        try:
            with operation_in(txn, self._host) as branch:
                if self._closed:
                    raise Closed(f"producer {self.name} was closed")
                if self._stopped_by is not None and branch is None:
                    raise Closed(self._stopped_by)
                require_open(self._host)
                stored: Sequence[bytes | None] = values  # type: ignore[assignment]  # bytes, as there is no serializer
                tagged: Sequence[HeaderPairs] | None = None
                if self._serializer is not None:
                    stored, tagged = encode_all(self._serializer, values, common.headers)
                bytes_left = check_messages(stored, common, tagged, self._bounds.message_bytes_max)
                principal = "" if txn is None else txn.principal
                if self._host.observer is None:
                    return await self._sent(stored, common, tagged, branch, principal)
                with observed_send(self._host.observer, self._topic, stored, branch) as observation:
                    common, tagged = with_added_headers(observation, common, tagged, bytes_left)
                    return await self._sent(stored, common, tagged, branch, principal)
        except DELETION_ERRORS as error:
            await raise_if_deleted(self._host, (self._layout,), error)
            raise

    async def _sent(
        self,
        values: Sequence[bytes | None],
        common: SharedFields,
        tagged: Sequence[HeaderPairs] | None,
        branch: Branch | None,
        principal: str,
    ) -> tuple[MessageID, ...]:
        """
        Pass the messages to the segments as the quota permits, and return their ids.

        ``tagged``: the headers of each message, if they have schema ids; otherwise all have the headers in ``common``.
        """
        first = common.sequence_id
        chosen = first is not None
        sending = SendCall(self._quota, len(values))
        try:
            async with self._quota.turn:
                if self._backlog_quota is not None:
                    await self._backlog_quota.require_room()
                at = 0
                while at < len(values):
                    upto = at + await sending.acquire(len(values) - at)
                    now_ms = self._host.environment.now_ms()
                    for number in range(at, upto):
                        # Counted only here, so that the sequence ids within one segment grow in the order of ``_put``.
                        sequence = self._next_sequence if first is None else first + number
                        if sequence > INT64_MAX:
                            raise InvalidInput(
                                f"producer {self.name} has used the last sequence id, 2**63 - 1: send under another"
                                " name, or choose the sequence ids"
                            )
                        self._next_sequence = max(self._next_sequence, sequence + 1)
                        self._sends += 1
                        headers = common.headers if tagged is None else tagged[number]
                        message = EntryMessage(common.key, values[number], headers, sequence, now_ms)
                        self._put(
                            OutgoingMessage(message, branch, chosen, sending, number, self._sends, principal=principal)
                        )
                    at = upto
            return await sending.ended()
        except BaseException as error:
            # Also a call that was cancelled: whether its messages are stored is unknown.
            if branch is None and self._stops_after_failure:
                self._stop(error)
            raise
        finally:
            sending.give_up()

    # -- routing --------------------------------------------------------------------------------------

    def _follow(self, layout: Layout) -> None:
        """Route by this layout. If it has one active segment, messages are not hashed."""
        self._layout = layout
        active = layout.active()
        if self._only is not None:
            self._sole: int | None = self._only.segment_id
        else:
            self._sole = active[0].id if len(active) == 1 else None

    def _put(self, outgoing: OutgoingMessage) -> None:
        if self._stopped_by is not None and outgoing.branch is None:
            outgoing.fail(Closed(self._stopped_by))
            return
        segment_id = self._sole
        if segment_id is None:
            segment_id = self._layout.route(hash_of(outgoing.message, self.name)).id
        sender = self._senders.get(segment_id)
        if sender is None:
            sender = self._senders[segment_id] = self._new_sender(segment_id)
        sender.put(outgoing)

    def _new_sender(self, segment_id: int) -> SegmentSender:
        layout = self._layout
        ancestors = tuple((str(layout.name_of(one.id)), one) for one in layout.ancestors(segment_id))
        name = str(layout.name_of(segment_id))
        sealed = self._reroute_soon if self._only is None else None
        failed = self._stop if self._stops_after_failure else None
        return SegmentSender(
            self._host, self._retry, self.name, name, ancestors, sealed, layout.life, self._beyond, failed
        )

    def _stop(self, error: BaseException) -> None:
        """Refuse all later messages outside of transactions, after one that was not stored."""
        if self._stopped_by is not None:
            return
        why = str(error) or type(error).__name__
        self._stopped_by = f"producer {self.name} stopped after a message that was not stored: {why}"
        for sender in tuple(self._senders.values()):
            sender.refuse_waiting(Closed(self._stopped_by))

    def _reroute_soon(self) -> None:
        if self._rerouting is None:
            self._rerouting = asyncio.ensure_future(self._reroute())
            self._rerouting.add_done_callback(self._rerouted)

    def _rerouted(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs, so ``_reroute`` has not failed the waiting sends.
        if self._rerouting is task:
            self._rerouting = None
            self._fail_stopped()

    def _fail_stopped(self) -> None:
        for sender in self._senders.values():
            if sender.stopped:
                sender.fail(Closed(f"producer {self.name} was stopped while it followed a change of {self.topic}"))

    async def _reroute(self) -> None:
        """Finish the layout change that sealed a segment, then send its waiting messages to the children, in order."""
        try:
            while stopped := {number: sender for number, sender in self._senders.items() if sender.stopped}:
                try:
                    layout = await self._retry.run(self._host.topics.finish_changes, self._layout.topic)
                except Exception as error:  # raised by the waiting sends; later sends retry
                    for sender in stopped.values():
                        sender.fail(error)
                    continue
                if not layout.continues(self._layout):
                    # The topic was deleted and created again: these messages do not belong to the new topic.
                    for sender in stopped.values():
                        sender.fail(TopicNotFound(str(layout.topic), deleted=True))
                    continue
                await self._move_to(layout)
                for number, sender in stopped.items():
                    if number in self._senders:  # sealed or deleted without a layout change, so it has no children
                        sender.fail(sender.refused or LedgerSealed(str(layout.name_of(number))))
        except BaseException:
            self._fail_stopped()
            raise
        finally:
            self._rerouting = None

    async def _move_to(self, layout: Layout) -> None:
        stale: dict[int, SegmentSender] = {}
        # A merged segment has a second parent, whose sends in flight must end before later messages go to the child.
        # Otherwise messages of one key could overtake each other. Meanwhile new sends still follow the old layout, and
        # may open a sender to another replaced segment. So this repeats until no such sender is found.
        while found := {
            number: sender
            for number, sender in self._senders.items()
            if number not in stale and layout.segments[number].state is SegmentState.REPLACED
        }:
            stale |= found
            for sender in found.values():
                sender.stopped = True
            for sender in found.values():
                await sender.idle()
        self._follow(layout)
        for number in stale:
            del self._senders[number]
        # The messages of two merged parents continue in the order in which they were sent. An entry claims every
        # sequence id between its first and last one. So entries of the second parent would be refused after those of
        # the first parent.
        for outgoing in sorted((one for sender in stale.values() for one in sender.waiting), key=lambda one: one.order):
            self._put(outgoing)


async def open_producer(
    host: Host,
    retry: RetryPolicy,
    target: TopicName | SegmentName,
    name: str | None,
    serializer: Serializer[T_contra] | None = None,
    stop_after_failure: bool = False,
) -> Producer[T_contra]:
    """Return a producer of this name; None means a new unique name."""
    layout = await host.topics.finish_changes(target.topic)
    if isinstance(target, SegmentName):
        layout.segment_of(target)
    return Producer(host, retry, target, layout, name, serializer, stop_after_failure)
