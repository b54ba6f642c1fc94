"""Consumers: receive from a subscription, and acknowledge within and outside transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txnframework.broker import Host, first_completed
from txnframework.client._arguments import MILLISECONDS_MAX, time_to_wait_ms, whole_number
from txnframework.client._base import DELETION_ERRORS, client_closed, close_after, naming_deletion
from txnframework.client._content_types import T_co
from txnframework.client._dead_letters import DeadLetter, DeadLetters
from txnframework.client._handlers.runs import HandlerRuns
from txnframework.client._messages import Message, with_content
from txnframework.client._observations import note_received, observed_acks
from txnframework.client._planned import PlannedAck
from txnframework.client._seek_positions import Target
from txnframework.client._subscription.acknowledgments import Acked, ConsumerAcks, check_acked
from txnframework.client._subscription.delivery_records import DeliveryRecorder
from txnframework.client._subscription.inbox import Inbox
from txnframework.client._subscription.membership import Membership
from txnframework.client._subscription.options import ConsumerOptions
from txnframework.client._subscription.segments import Targets
from txnframework.client._transaction import TransactionPart, operation_in
from txnframework.errors import Closed, InvalidInput, ReceiveTimeout
from txnframework.runtime.deadline import Deadline

if TYPE_CHECKING:
    from txnframework.serializers import Serializer


class Consumer(HandlerRuns[T_co]):
    """
    Receives messages from one subscription; created by ``Client.consumer``.

    ``T_co`` is the type of the contents, which its serializer decodes. Without a serializer, ``Consumer`` means
    ``Consumer[bytes]``.

    A message is redelivered until it is acknowledged. A message that a transaction acknowledged is redelivered if the
    transaction aborts. ``async for`` continues until the consumer is closed.
    """

    def __init__(
        self,
        host: Host,
        targets: Targets,
        options: ConsumerOptions,
        dead_letter: DeadLetter | None = None,
        serializer: Serializer[T_co] | None = None,
    ) -> None:
        self._serializer = serializer
        self.subscription = options.subscription
        self.name = options.name
        self._host = host
        self._options = options
        self._inbox = Inbox()
        self._news = asyncio.Event()
        # Set with ``_news``. ``wait_until`` clears this one, because ``receive`` may not have looked at the other yet.
        self._changed = asyncio.Event()
        self._closed = False
        self._dead_letters = None if dead_letter is None else DeadLetters(host, dead_letter, self)
        self._leaving: asyncio.Task[None] | None = None
        # Seeking detaches segments and attaches them again, so seeks and the close are serialized.
        self._changing = asyncio.Lock()
        self._membership = Membership(host, targets, options, self._inbox, self.notice)
        self._segments = self._membership.segments
        self._recorder = DeliveryRecorder(host, self._segments)
        self._acks = ConsumerAcks(host, options.subscription, self._segments, self._require_open)

    def __repr__(self) -> str:
        topics = ", ".join(map(str, self._segments.targets))
        return (
            f"<Consumer {self.name} of {topics}, subscription {self.subscription}{', closed' if self._closed else ''}>"
        )

    @property
    def keys(self) -> frozenset[str]:
        """The keys of this consumer's steps: its topics."""
        return frozenset(str(target.topic) for target in self._segments.targets)

    @property
    def is_active(self) -> bool:
        """
        Whether new messages of a segment are given to this consumer.

        False while it stands by, because another consumer, here or in another process, gets them; after it was closed;
        and while it has no segment. A paused consumer stays active.
        """
        feeds = self._segments.feeds.values()
        return not self._closed and any(one.attached is not None and one.attached.is_active for one in feeds)

    async def wait_until(self, *, active: bool) -> None:
        """
        Return when ``is_active`` has this value; at once if it has it now.

        :raises Closed: the consumer was closed while it was waited for.
        """
        while self.is_active is not active:
            self._changed.clear()
            self._require_open()
            self._raise_what_failed()
            await self._changed.wait()

    async def join(self) -> None:
        """Attach to the segments; ``Client.consumer`` calls this."""
        await self._membership.join()

    # -- receiving ------------------------------------------------------------------------------------

    async def receive(self, *, timeout_ms: int | None = None) -> Message[T_co]:
        """
        Return the next message.

        :param timeout_ms: how long to wait; default: without limit.
        :raises ReceiveTimeout: no message arrived within ``timeout_ms``.
        :raises LeaseLost: only with ``stand_by=False``: the lease was lost, and another process may dispatch the
            subscription now. Open another consumer. With other values of ``stand_by`` the consumer takes the lease
            again or waits for its turn.
        """
        if timeout_ms is not None:
            time_to_wait_ms(timeout_ms)
        return (await self._receive(1, timeout_ms))[0]

    async def receive_many(self, *, messages_max: int, timeout_ms: int | None = None) -> tuple[Message[T_co], ...]:
        """
        Return at least one and at most ``messages_max`` messages, without waiting for more than the first.

        Errors are those of ``receive``.
        """
        whole_number(messages_max, "messages_max", 1)
        time_to_wait_ms(timeout_ms)
        return await self._receive(messages_max, timeout_ms)

    async def _receive(self, messages_max: int, timeout_ms: int | None) -> tuple[Message[T_co], ...]:
        """Return messages as ``receive_many`` does, for arguments that are checked."""
        environment = self._host.environment
        deadline = None if timeout_ms is None else Deadline(environment, timeout_ms)
        while True:
            self._news.clear()
            self._require_open()
            taken: tuple[Message[Any], ...] = self._inbox.take(messages_max)
            received = taken if self._dead_letters is None else self._dead_letters.sort_out(taken)
            if received:
                note_received(self._host.observer, self.subscription, received)
                serializer = self._serializer
                return received if serializer is None else tuple([with_content(one, serializer) for one in received])
            self._raise_what_failed()
            if taken:
                continue
            if self._inbox.unrecorded is not None:
                await self._recorder.record(*self._inbox.unrecorded, timeout_ms, deadline)
                continue
            if self._transactions is not None:
                self._transactions.messages_awaited()
            if timeout_ms is None or deadline is None:
                await self._news.wait()
            elif not deadline.left_ms:
                raise ReceiveTimeout(timeout_ms, is_at_limit=self._is_at_limit())
            else:
                await first_completed(self._news.wait(), deadline.passed())

    def _is_at_limit(self) -> bool:
        """Return whether messages wait until this consumer acknowledges some."""
        return any(one.attached is not None and one.attached.is_at_limit for one in self._segments.feeds.values())

    async def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        while not self._closed:
            try:
                message = await self.receive()
            except Closed:
                if self._closed:
                    return
                raise
            yield message

    # -- acknowledging --------------------------------------------------------------------------------

    async def ack(self, *messages: Acked, txn: TransactionPart | None = None) -> None:
        """
        Acknowledge messages individually: durably when this returns or, in ``txn``, when the transaction commits.

        Some acknowledgments outside transactions have no effect and raise no error. This applies to messages that an
        open transaction acknowledged, to messages that are acknowledged already, and to messages received before a
        seek.

        :param messages: messages or their ids.
        :param txn: the transaction that the acknowledgments belong to; default: none.
        :raises SubscriptionNotFound: the subscription was deleted.
        :raises TransactionConflict: the transaction has ended, or another transaction acknowledged one of the messages.
            It is also raised if a message is acknowledged already, or was received before a seek. Nothing is
            acknowledged on the segment of that message.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing is acknowledged.
        :raises OutcomeUnknown: the messages may be acknowledged, as after a cancelled call; acknowledge them again.
        """
        try:
            with (
                observed_acks(self._host.observer, self.subscription, messages, txn),
                operation_in(txn, self._host) as branch,
            ):
                await self._acks.single(messages, branch, "" if txn is None else txn.principal)
        except DELETION_ERRORS as error:
            await self._acks.raise_if_deleted(messages, error)
            raise

    def acknowledging(self, *messages: Acked) -> PlannedAck:
        """
        Return acknowledgments for ``Client.transact``, which makes them as ``ack`` does.

        :param messages: messages or their ids.
        :raises InvalidInput: there are none, or one is something else.
        """
        self._require_open()
        check_acked(messages, self.subscription)
        if not messages:
            raise InvalidInput("acknowledging needs at least one message")
        return PlannedAck(self._host, self._acks, messages, lambda given, txn: self.ack(*given, txn=txn))

    async def ack_cumulative(self, message: Acked, *, txn: TransactionPart | None = None) -> None:
        """
        Acknowledge a message, all messages before it in its segment, and those in the segment's ancestors.

        Subscription types whose consumers share the messages of a segment do not support this.

        In a transaction, the acknowledgment covers the messages up to this one that this consumer received and has not
        acknowledged itself. Messages that were acknowledged before this consumer joined are skipped.

        :param message: a message or its id.
        :param txn: the transaction that the acknowledgment belongs to; default: none.
        :raises InvalidInput: the subscription type does not support this.
        :raises TransactionConflict: the message is acknowledged already, another transaction holds some of the covered
            messages, or another consumer has acknowledged some of them. It is also raised if the subscription's lease
            was lost after the message was received. Abort the transaction, and receive the remaining messages again
            with ``redeliver_unacknowledged``.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing is acknowledged.
        :raises OutcomeUnknown: some or all of the messages may be acknowledged, as after a cancelled call.
        """
        if not self._options.acknowledges_cumulatively:
            raise InvalidInput(
                f"a {self._options.type.name} subscription has no order of all its messages, so it cannot acknowledge "
                f"cumulatively"
            )
        try:
            with (
                observed_acks(self._host.observer, self.subscription, (message,), txn),
                operation_in(txn, self._host) as branch,
            ):
                await self._acks.cumulative(message, branch, "" if txn is None else txn.principal)
        except DELETION_ERRORS as error:
            await self._acks.raise_if_deleted((message,), error)
            raise

    async def nack(self, *messages: Acked, delay_ms: int | None = None) -> None:
        """
        Request redelivery of these messages after a delay.

        The delay is kept in the memory of the dispatching process. If the process ends before, the messages are
        redelivered at once.

        :param delay_ms: how long to wait; default: ``subscriptions.redelivery_delay_ms``.
        """
        self._require_open()
        default_ms = self._host.config.subscriptions.redelivery_delay_ms
        wait_ms = default_ms if delay_ms is None else whole_number(delay_ms, "delay_ms", 0, MILLISECONDS_MAX)
        try:
            await self._acks.return_later(messages, wait_ms)
        except DELETION_ERRORS as error:
            await self._acks.raise_if_deleted(messages, error)
            raise

    async def redeliver_unacknowledged(self) -> None:
        """
        Request redelivery, in order, of all messages that this consumer received and did not acknowledge.

        :raises Unavailable: the store did not answer. The consumer keeps the messages of at least one segment, so
            call it again.
        """
        self._require_open()
        async with naming_deletion(self._host, self._segments.layouts.values):
            for feed in tuple(self._segments.feeds.values()):
                if feed.attached is None:
                    feed.renounce()
                else:
                    # If this fails, the consumer keeps the messages that it has received.
                    await feed.attached.return_delivered(None, feed.renounce)

    def pause(self) -> None:
        """
        Receive nothing more until ``resume``: ``receive`` waits, and ``run`` takes no further messages.

        The consumer stays attached and keeps its leases. It keeps the messages that it received, and messages that it
        did not receive yet go to other consumers of the subscription in this process, if the type permits. A paused
        dispatch reads ahead no further than ``subscriptions.read_entries_max``. A second call does nothing.
        """
        self._require_open()
        self._inbox.paused = True
        for feed in tuple(self._segments.feeds.values()):
            feed.pause()

    def resume(self) -> None:
        """Receive messages again, after ``pause``."""
        self._require_open()
        self._inbox.paused = False
        for feed in tuple(self._segments.feeds.values()):
            feed.resume()
        self.notice()

    async def seek(self, to: Target) -> None:
        """
        Move the subscription to another position.

        A seek to a message moves its segment, and restarts the descendants of that segment at their beginning. Other
        segments do not move. To any other target, all segments are moved. Earlier acknowledgments on moved segments
        lose their effect, including those of open transactions.

        If the caller is cancelled, the subscription is still moved, and the next call for these topics waits for it.

        :param to: the id of the message to deliver next in its segment, or a time in ms since 1970. ``earliest`` is
            before the first stored message, and ``latest`` is after the last message that can be read now.
        :raises InvalidInput: ``to`` is none of these.
        :raises OutcomeUnknown: the subscription may have been moved, on some or all of its segments.
        """
        self._require_open()
        async with naming_deletion(self._host, self._segments.layouts.values):
            await self._host.steps.finish(partial(self._seek_in_turn, to), self.keys)

    async def close(self) -> None:
        """
        Leave the subscription; unacknowledged messages go to other consumers. A second call is allowed.

        If the caller is cancelled, the consumer still leaves. A second call waits for the end, and so does the next
        consumer of these topics that this client opens.
        """
        if self._leaving is None or _failed(self._leaving):
            self._leaving = self._host.steps.begin(self._leave, self.keys)
        await self._host.steps.end_of(self._leaving, self.keys)

    async def _leave(self) -> None:
        if self._dead_letters is not None:
            await self._dead_letters.close()
        self._closed = True
        self.notice()
        async with self._changing:
            await self._membership.leave()

    def notice(self) -> None:
        """Wake the tasks that wait in ``receive`` or ``wait_until``, so that they look again."""
        self._news.set()
        self._changed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_after(error, self.close)

    # -- one segment ----------------------------------------------------------------------------------

    async def _seek_in_turn(self, to: Target) -> None:
        async with self._changing:
            self._require_open()
            await self._membership.moves.seek(self.subscription, to)

    def _raise_what_failed(self) -> None:
        for part in (self._membership, self._dead_letters):
            if part is not None and part.error is not None:
                if isinstance(part.error, Closed) and self._host.closing:
                    raise client_closed(self._host) from part.error
                raise part.error

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of subscription {self.subscription} was closed")
        if self._host.closed:
            raise client_closed(self._host)


def _failed(step: asyncio.Task[None]) -> bool:
    return step.done() and (step.cancelled() or step.exception() is not None)
