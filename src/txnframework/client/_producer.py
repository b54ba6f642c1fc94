"""Producers: idempotent and batching sends, routed by hash, which follow splits inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self

from txnframework.broker import Host
from txnframework.client._arguments import MILLISECONDS_MAX, header_pairs, several_values, whole_number
from txnframework.client._base import RetryPolicy, close_after
from txnframework.client._content_types import T_contra
from txnframework.client._messages import MessageID
from txnframework.client._planned import PlannedSend
from txnframework.client._sends.message_checks import SharedFields
from txnframework.client._sends.sends import ProducerSends
from txnframework.client._transaction import TransactionPart
from txnframework.errors import InvalidInput
from txnframework.model.delays import delayed_until
from txnframework.model.layout import Layout
from txnframework.model.names import SegmentName, TopicName

if TYPE_CHECKING:
    from txnframework.serializers import Serializer


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
        self.topic = str(target)
        self._sends: ProducerSends[T_contra] = ProducerSends(
            host, retry, target, layout, name, serializer, stop_after_failure
        )
        self.name = self._sends.name
        self._host = host

    def __repr__(self) -> str:
        return f"<Producer {self.name} of {self.topic}{', closed' if self._sends.is_closed else ''}>"

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
        (sent,) = await self._sends.send((value,), SharedFields(key, pairs, sequence_id), txn)
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
        return await self._sends.send(several_values(values), SharedFields(key, pairs, sequence_id), txn)

    def outgoing(
        self,
        value: T_contra | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        sequence_id: int | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
    ) -> PlannedSend:
        """
        Return a message for ``Client.transact``, which sends it; parameters are those of ``send``.

        ``deliver_after_ms`` counts from this call. The messages of one producer in one call of ``transact`` are stored
        in the order in which they are passed.

        :raises InvalidInput: as for ``send``.
        """
        pairs = self._headers(headers, deliver_at_ms, deliver_after_ms)
        message = self._sends.planned(value, SharedFields(key, pairs, sequence_id))
        return PlannedSend(self._host, self, self._sends, message)

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
        await self._sends.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_after(error, self.close)


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
    await host.prepare_rows(str(layout.topic), [str(layout.name_of(one.id)) for one in layout.active()])
    return Producer(host, retry, target, layout, name, serializer, stop_after_failure)
