"""Delivery of one segment's messages to one subscription's consumers in this process."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from txnframework.broker.coordinators.own_transactions import KnownOutcomes
from txnframework.broker.dispatch.ack_state import OpenAcks
from txnframework.broker.dispatch.acknowledgments import AckRecorder, CursorAckWriter, SizedPosition
from txnframework.broker.dispatch.consumers import AttachedConsumers, AttachRequest, Listener
from txnframework.broker.dispatch.deliveries import Deliveries, DeliveryCounts, HeldMessage
from txnframework.broker.dispatch.durable_counts import DurableCounts
from txnframework.broker.dispatch.read_ahead import ReadAhead
from txnframework.broker.dispatch.refresh import RefreshTrigger
from txnframework.broker.segments import OpenSegment, SegmentSubscription, dispatching_lease
from txnframework.config import SubscriptionsSection
from txnframework.environment import Environment
from txnframework.errors import Closed, LeaseLost, TxnFrameworkError
from txnframework.interfaces import IDispatcher, ILease, IMetadataStore, ITransactionCoordinator
from txnframework.model.acks import Ack, AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.dispatch import Ordering
from txnframework.model.ids import Branch
from txnframework.model.positions import Position
from txnframework.runtime.tasks import RetryingTasks, first_completed


@dataclass(frozen=True, slots=True)
class DispatchParts:
    """The parts of a dispatch; without a ``coordinator`` there are no transactions."""

    segment: OpenSegment
    subscription: SegmentSubscription
    subscription_type: str
    dispatcher: IDispatcher
    coordinator: ITransactionCoordinator | None
    store: IMetadataStore
    environment: Environment
    bounds: SubscriptionsSection
    outcomes: KnownOutcomes


class SegmentDispatch:
    """
    Reads a segment through its buffer, offers messages to the dispatcher, and delivers them as it assigns.

    A dispatch waits for announcements and never polls. Everything in its memory can be read again from the stores. A
    lease holder that was paused and resumes can only fail.
    """

    def __init__(
        self, parts: DispatchParts, lease: ILease, earlier: DeliveryCounts, *, may_be_replaced: bool = False
    ) -> None:
        self._may_be_replaced = may_be_replaced
        self.subscription_type = parts.subscription_type
        self.segment = parts.segment.name
        self.drained = False
        """The segment is sealed, and all its messages were delivered."""
        self.done = False
        """The segment is sealed, and all its messages are acknowledged."""
        self.ended: Exception | None = None
        self.retiring = False
        """The segment is about to be given up: nothing more is delivered."""
        self._takers: frozenset[int] = frozenset()
        self.incarnation = 0
        self._parts = parts
        self._lease = lease
        self._earlier = earlier
        self.counting: DurableCounts | None = None
        """The counts in the store, if a consumer needs them."""
        self.tenure = object()
        """Identifies deliveries under this lease."""
        # Only without any order can a message be held back, and the messages behind it be delivered.
        delays = parts.dispatcher.ordering is Ordering.NONE
        self._deliveries = Deliveries(parts.outcomes.counts, delays=delays)
        self._read_ahead = ReadAhead(parts.segment, self._deliveries, parts.bounds)
        self._consumers = AttachedConsumers(parts.dispatcher, self._deliveries, parts.bounds, self.tenure)
        self._cursor: Cursor | None = None
        self._open_acks = OpenAcks({}, 0)
        self._wake = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._cursor_acks = CursorAckWriter(parts.subscription.cursor, parts.environment, parts.bounds.cursor_delay_ms)
        self._trigger = RefreshTrigger(
            parts.store, parts.coordinator, parts.environment, self._deliveries, self.refresh
        )
        self._acks = AckRecorder(self, self._deliveries, self._cursor_acks, parts.subscription.pending_acks)
        self._tasks = RetryingTasks(parts.environment, self._end_with)

    async def start(self) -> None:
        """
        Read acknowledgments, then headers, then the cursor, and start to deliver.

        :raises SubscriptionNotFound: the subscription does not exist.
        """
        subscription = self._parts.subscription
        await self._trigger.arm(self.segment, subscription.name, subscription.cursor)
        await self.refresh()
        trigger = self._trigger
        for work in (self._pump, trigger.run_on_changes, trigger.run_on_transaction_ends, self._until_lease_lost):
            self._tasks.start(work)
        if self._may_be_replaced:
            self._tasks.start(self._until_replaced)

    def is_of(self, life: int) -> bool:
        """Return whether the segment belongs to this life of its topic."""
        return self._parts.segment.is_of(life)

    def is_before(self, life: int) -> bool:
        """Return whether the segment belongs to an earlier life of its topic, so that it was deleted."""
        return not self.is_of(life) and self._parts.segment.life < life

    def drained_by(self, consumer_id: int) -> bool:
        """Return whether the segment is sealed and delivered, and no other consumer has any of its messages."""
        return self.drained and self._deliveries.consumers() <= {consumer_id}

    async def close(self) -> None:
        """Stop, notify the consumers, and release the lease; a second call is allowed."""
        self._end_with(Closed(f"dispatching of {self.segment} was stopped"))
        await self._tasks.stop()
        self._read_ahead.stop_watching()
        await self._cursor_acks.finish()
        await self._trigger.close()
        if self.counting is not None:
            # Before the lease: the next dispatch must find the counts. Without this write it takes this one for dead.
            with suppress(TxnFrameworkError):
                await self.counting.end(self.incarnation, self._deliveries.redeliveries())
        await self._lease.release()

    async def count_durably(self) -> None:
        """
        Count deliveries in the store from now on, and take over the counts of earlier processes.

        :raises Unavailable: the store cannot be asked now.
        """
        if self.counting is not None or self._cursor is None:
            return
        token = f"{self._parts.environment.random_bits(64):016x}"
        counting = DurableCounts(
            self._parts.store, self.segment, self._parts.subscription.name, token, self._deliveries
        )
        cursor = self._cursor
        counts = await counting.begin(cursor)
        if cursor.incarnation == self.incarnation:
            self._deliveries.remember(counts)
        self.counting = counting

    @property
    def redeliveries(self) -> DeliveryCounts:
        """The delivery counts of unacknowledged messages, for the next dispatch."""
        return DeliveryCounts(self.incarnation, self._deliveries.redeliveries())

    # -- consumers ------------------------------------------------------------------------------------

    @property
    def consumers(self) -> int:
        """The number of attached consumers."""
        return len(self._consumers.by_id)

    def attach(self, request: AttachRequest, listener: Listener) -> int:
        """
        Add a consumer, and return its id in this dispatch.

        :raises ConsumerBusy: the type allows one consumer only, and the subscription has one.
        :raises LeaseLost: the lease was lost since the dispatch began.
        """
        if isinstance(self.ended, LeaseLost):
            raise LeaseLost(self.ended.name) from self.ended
        self._require_running()
        consumer_id = self._consumers.attach(request, listener)
        if not request.shares:
            self.retiring = False
        self._wake.set()
        return consumer_id

    async def detach(self, consumer_id: int, unseen: frozenset[Position]) -> None:
        """Remove a consumer; its unacknowledged messages go to others, those in ``unseen`` as if never delivered."""
        had: frozenset[Position] | None = None
        try:
            had = self._consumers.detach(consumer_id)
            if had is not None and self._consumers.by_id:
                await self.return_delivered(consumer_id, None, lambda: unseen)
        finally:
            self._deliveries.detach(consumer_id, unseen)
            # Each of its messages waits again, in its order, or is held by a transaction. So the dispatcher may assign
            # later ones.
            self._parts.dispatcher.released(had or frozenset())
            self._wake.set()

    @property
    def may_be_given_up(self) -> bool:
        """Whether all consumers share the topic's segments with other processes."""
        return self._consumers.all_share()

    @property
    def is_quiet(self) -> bool:
        """Whether no consumer has a message whose acknowledgment was not recorded."""
        return not self._deliveries.in_use()

    def retire(self, consumer_id: int, unseen: frozenset[Position]) -> None:
        """
        Deliver nothing more, so that the segment can be given up when its consumers have acknowledged what they have.

        The messages in ``unseen``, which the consumer's user has not received, wait again. Call this for each consumer.
        """
        self.retiring = True
        self._parts.dispatcher.released(frozenset(self._deliveries.requeue(unseen, consumer_id, unseen)))
        self._wake.set()

    async def keep(self) -> None:
        """Deliver again: the segment is not given up."""
        # Messages that others acknowledged in the meantime must not be delivered.
        await self.refresh()
        self.retiring = False
        self._wake.set()

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let a consumer take this many more messages, as it acknowledges others; a detached consumer is ignored."""
        consumer = self._consumers.by_id.get(consumer_id)
        if consumer is not None:
            consumer.owed += messages
            self._wake.set()

    def delivered_to(self, consumer_id: int) -> frozenset[Position]:
        """Return the positions of the messages that a consumer has."""
        return frozenset(self._deliveries.delivered_to(consumer_id))

    def hand_out(self, consumer_id: int, position: Position, number: int) -> bool:
        """
        Return whether a delivery is still valid, so that the user may receive it, and permit another message.

        Messages that were given back or acknowledged must not be handed out.
        """
        consumer = self._consumers.by_id.get(consumer_id)
        if consumer is not None:
            consumer.owed += 1
            self._wake.set()
        return self.ended is None and self._deliveries.hand_out(consumer_id, position, number)

    async def return_delivered(
        self, consumer_id: int, positions: Iterable[Position] | None, unseen: Callable[[], frozenset[Position]]
    ) -> None:
        """
        Redeliver these messages to the next consumer; with None, all that the consumer did not acknowledge.

        ``unseen`` is called at the time of the decision, and returns the positions that the user has not received. With
        None, these are redelivered without being counted. With ``positions``, they are left alone, because they are
        already being redelivered.
        """
        # Messages that others acknowledged in the meantime must not be redelivered.
        await self.refresh()
        hidden = unseen()
        wanted = self._deliveries.delivered_to(consumer_id) if positions is None else set(positions) - hidden
        returned = self._deliveries.requeue(wanted, consumer_id, hidden)
        if positions is None:
            self._deliveries.forget_received(consumer_id)
        self._parts.dispatcher.released(frozenset(returned))
        self._wake.set()

    def return_later(
        self,
        consumer_id: int,
        positions: tuple[Position, ...],
        delay_ms: int,
        unseen: Callable[[], frozenset[Position]],
    ) -> None:
        """Redeliver messages after ``delay_ms``, unless they are acknowledged before."""
        due_ms = self._parts.environment.now_ms() + delay_ms

        async def wait() -> None:
            await self._parts.environment.sleep_until(due_ms)
            await self.return_delivered(consumer_id, positions, unseen)

        self._tasks.start(wait)

    def give_back(self, consumer_id: int, failed: Iterable[Position], spared: Iterable[Position]) -> None:
        """Let a consumer's messages wait again, in their order; only a delivery of the ``failed`` ones counts."""
        uncounted = frozenset(spared)
        returned = self._deliveries.requeue({*failed, *uncounted}, consumer_id, uncounted)
        self._parts.dispatcher.released(frozenset(returned))
        self._wake.set()

    def pause(self, consumer_id: int, unseen: frozenset[Position]) -> None:
        """Deliver nothing more to a consumer until ``resume``; messages in ``unseen`` go to other consumers."""
        self._consumers.pause(consumer_id)
        self.give_back(consumer_id, (), unseen)

    def resume(self, consumer_id: int) -> None:
        """Deliver to a paused consumer again."""
        self._consumers.resume(consumer_id)
        self._wake.set()

    def left_behind(self, consumer_id: int) -> dict[Position, Branch | None]:
        """Return the messages that others may finish after the loss of the lease; see ``Deliveries.left_behind``."""
        return self._deliveries.left_behind(consumer_id)

    # -- acknowledging --------------------------------------------------------------------------------

    def batch_size(self, position: Position) -> int | None:
        """Return the batch size of a message that was read here and is not finished; otherwise None."""
        held = self._deliveries.messages.get(position)
        return None if held is None else held.batch_size

    def has(self, consumer_id: int, position: Position) -> bool:
        """Return whether a consumer has a message that is neither acknowledged nor given back."""
        return self.ended is None and self._deliveries.has(consumer_id, position)

    def is_held(self, position: Position) -> bool:
        """Return whether an acknowledgment of a message is in progress, or pending as of the last refresh."""
        return self.ended is None and self._deliveries.is_held(position)

    def was_given(self, consumer_id: int, position: Position) -> bool:
        """Return whether this dispatch gave an unfinished message to a consumer's user."""
        held = self._deliveries.messages.get(position)
        return held is not None and held.given_to == consumer_id

    def was_taken_back(self, consumer_id: int, position: Position) -> bool:
        """Return whether an unfinished message is not given to a consumer now: it was given back, or to another one."""
        held = self._deliveries.messages.get(position)
        return held is not None and held.given_to != consumer_id

    async def ack(
        self,
        messages: tuple[SizedPosition, ...],
        incarnation: int,
        holder: Branch | None,
        principal: str,
        consumer_id: int,
    ) -> None:
        """
        Acknowledge a consumer's messages individually, in ``holder`` or (None) outside transactions.

        The messages are given with their batch sizes. Outside transactions, messages that a transaction holds are
        skipped, and so are messages delivered under another incarnation.

        :raises TransactionConflict: another transaction holds one of the messages, or one is finished; nothing is
            acknowledged.
        """
        self._require_running()
        try:
            if incarnation == self.incarnation:
                upto, single = (lambda: self._read_ahead.upto), self._acks.single
                await single(messages, incarnation, holder, principal, upto, consumer_id)
            elif holder is not None:
                await self._acks.outdated(messages, incarnation, holder, principal)
        finally:
            self._wake_retiring()

    async def ack_cumulative(
        self, message: SizedPosition, incarnation: int, holder: Branch | None, principal: str, consumer_id: int
    ) -> None:
        """
        Acknowledge a message and all messages before it in this segment.

        In a transaction this covers the messages that the message's consumer received and has not acknowledged itself.
        If the message was not delivered here, that consumer is ``consumer_id``.

        :raises TransactionConflict: another transaction holds some of the messages, the message is finished already, or
            others have finished some of the covered messages.
        """
        self._require_running()
        try:
            if incarnation == self.incarnation:
                named = None if holder is None else self._deliveries.messages.get(message[0])
                consumer = consumer_id if named is None or named.given_to is None else named.given_to
                await self._acks.cumulative(message, incarnation, holder, principal, consumer)
            elif holder is not None:
                await self._acks.outdated((message,), incarnation, holder, principal)
        finally:
            self._wake_retiring()

    async def ack_given(self, upto: Position, holder: Branch | None, principal: str, consumer_id: int) -> None:
        """
        Acknowledge cumulatively the unacknowledged messages that a consumer received up to here.

        In a transaction, messages that the consumer acknowledged itself are excluded.

        :raises TransactionConflict: as for ``ack_cumulative``.
        """
        self._require_running()
        if holder is not None:
            await self._acks.all_given(upto, self.incarnation, holder, principal, consumer_id)
            return
        last = max((one for one in self._deliveries.upto(upto) if not self._deliveries.is_held(one)), default=None)
        if last is not None:
            size = self.batch_size(last) or 1
            await self.ack_cumulative((last, size), self.incarnation, None, principal, consumer_id)

    def _wake_retiring(self) -> None:
        """Let the pump look whether the consumers have acknowledged everything; an open transaction holds the rest."""
        if self.retiring:
            self._wake.set()

    async def first_lost(self, upto: Position, consumer_id: int) -> Position | None:
        """Return the first message up to here that a consumer received and others finished; None if there is none."""
        return await self._acks.first_lost(upto, consumer_id)

    def is_attached(self, consumer_id: int) -> bool:
        """Return whether a consumer is attached and the lease is held."""
        return self.ended is None and consumer_id in self._consumers.by_id

    def remove_finished(self, done: Iterable[HeldMessage]) -> None:
        """Remove messages that are acknowledged."""
        gone = self._deliveries.forget(done)
        if self.counting is not None:
            self.counting.finished(gone)
        self._parts.dispatcher.released(gone)
        self._wake.set()

    # -- refreshing from the stores -------------------------------------------------------------------

    async def refresh(self) -> None:
        """Update the messages from the stores: read acknowledgments, then headers, then the cursor."""
        async with self._refreshing:
            refresh = self._deliveries.begin_refresh()
            pending = await self._parts.subscription.pending_acks.recover()
            cursor = await self._parts.subscription.cursor.load()
            self._open_acks = OpenAcks(pending.open, cursor.incarnation)
            if self._cursor is None or self._cursor.incarnation != cursor.incarnation:
                freed = self._begin_at(cursor)
            else:
                freed = self._deliveries.reconcile(cursor, self._open_acks, refresh)
            self._cursor = cursor
            if self.counting is not None:
                self.counting.finished(at for at in tuple(self.counting.suspects) if self._is_finished(at))
            self._parts.dispatcher.released(freed)
            self._wake.set()
            for branch in self._deliveries.claims.crowded():
                await self.load_outcome(branch)

    def _is_finished(self, position: Position) -> bool:
        return self._cursor is None or state_of(self._cursor, position) is AckState.DELETED

    def request_refresh(self) -> None:
        """Request a refresh soon."""
        self._trigger.request()

    async def load_outcome(self, branch: Branch) -> None:
        """Load the outcome of a transaction in which this process acknowledged."""
        if self._parts.coordinator is not None:
            await self._parts.outcomes.load(self._parts.coordinator, branch)

    def _begin_at(self, cursor: Cursor) -> frozenset[Position]:
        """Forget all messages and read from the cursor, at the first refresh or after a seek."""
        freed = self._deliveries.clear()
        self.incarnation = cursor.incarnation
        self._deliveries.remember(self._earlier.under(cursor))
        self._earlier = DeliveryCounts()
        self._read_ahead.begin_at(cursor.mark_delete)
        self.drained = self.done = False
        self._takers = frozenset()
        self._consumers.notify(lambda listener: listener.reset())
        return freed

    # -- reading and delivering -----------------------------------------------------------------------

    async def _pump(self) -> None:
        reading = self._read_ahead
        while True:
            self._wake.clear()
            if reading.failure is not None:
                reading.raise_failure()
            if self._deliveries.delayed:
                self._deliveries.release_due(self._parts.environment.now_ms())
            if self.retiring:
                if self.is_quiet:
                    self._consumers.notify(lambda listener: listener.progressed())
            elif self._deliveries.waiting and self._consumers.offer(self.incarnation) and self._deliveries.waiting:
                self._wake.set()
            may_read = self._may_read()  # later changes of this condition set the wake event
            page = await reading.read() if may_read and not reading.at_end else None
            if page is not None and self._cursor is not None:
                reading.take(page, self._cursor, self._open_acks)
                continue
            if reading.skipped or not self._deliveries.messages:
                await self._pass_by()
            if reading.sealed_end or self.drained:
                self._note_progress()
            if may_read:
                reading.watch(self._wake.set)
            await self._until_woken_or_due()

    async def _until_woken_or_due(self) -> None:
        """Wait for a change, or for the time at which a delayed message is due."""
        due_ms = self._deliveries.next_due_ms()
        if due_ms is None:
            await self._wake.wait()
        else:
            await first_completed(self._wake.wait(), self._parts.environment.sleep_until(due_ms))

    def _may_read(self) -> bool:
        """Return whether consumers are attached, and fewer messages wait than may be read ahead."""
        if self.retiring or self._read_ahead.sealed_end or not self._consumers.by_id or self._cursor is None:
            return False
        bounds, deliveries = self._parts.bounds, self._deliveries
        return (
            len(deliveries.waiting) < bounds.read_entries_max
            and deliveries.waiting_bytes < bounds.read_bytes_max
            and deliveries.delayed < bounds.delayed_messages_max
            and deliveries.delayed_bytes < bounds.delayed_bytes_max
            and len(self._cursor.deleted) < bounds.deleted_ranges_max
        )

    async def _pass_by(self) -> None:
        """Move the cursor past aborted entries and the ends of closed ledgers, which need no acknowledgment."""
        held, skipped, incarnation = len(self._deliveries.messages), self._read_ahead.skipped, self.incarnation
        if self._cursor is None:
            return
        # Everything before the first held message is finished: a message is removed only when the cursor includes it.
        upto = self._deliveries.done_through(self._read_ahead.upto)
        passed = bisect.bisect_right(skipped, upto)
        behind = not held and self._cursor.mark_delete < upto and (self._cursor.deleted or self._cursor.partial)
        if not passed and not behind:
            return
        await self._cursor_acks.write(incarnation, (Ack(upto, cumulative=True),))
        if incarnation == self.incarnation:
            del skipped[:passed]
        self._trigger.request()

    def _note_progress(self) -> None:
        drained = self._read_ahead.sealed_end and not self._deliveries.waiting and not self._deliveries.delayed
        done = drained and not self._deliveries.messages
        takers = self._deliveries.consumers() if drained else frozenset()
        if (drained, done, takers) != (self.drained, self.done, self._takers):
            self.drained, self.done, self._takers = drained, done, takers
            self._consumers.notify(lambda listener: listener.progressed())

    # -- running --------------------------------------------------------------------------------------

    async def _until_lease_lost(self) -> None:
        await self._lease.lost()
        raise LeaseLost(dispatching_lease(self.segment, self._parts.subscription.name))

    async def _until_replaced(self) -> None:
        """
        Wait until a later consumer of the same name, in another process, breaks the lease; only its record shows this.
        """
        store, key = self._parts.store, self._lease.key
        watch = await store.watch(key)
        try:
            while True:
                record = await store.get(key)
                if record is None or record.version != self._lease.version:
                    raise LeaseLost(dispatching_lease(self.segment, self._parts.subscription.name))
                await watch.changed()
        finally:
            await watch.close()

    def _end_with(self, error: Exception) -> None:
        """End the dispatch after a permanent error, and notify its consumers."""
        if self.ended is not None:
            return
        self.ended = error
        self._consumers.notify(lambda listener: listener.ended(error))
        self._consumers.by_id.clear()

    def _require_running(self) -> None:
        if self.ended is not None:
            raise Closed(f"dispatching of {self.segment} has ended: {self.ended}") from self.ended
