"""Delivery of one segment's messages to one subscription's consumers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from logging import WARNING

from txnframework.broker.coordinators.own_transactions import OwnTransactions
from txnframework.broker.dispatch.ack_progress import AckProgress
from txnframework.broker.dispatch.acknowledgments import AckRecorder
from txnframework.broker.dispatch.consumers import AttachedConsumers, AttachRequest, Listener
from txnframework.broker.dispatch.cursor_acks import CursorAckWriter
from txnframework.broker.dispatch.deliveries import Deliveries, HeldMessage
from txnframework.broker.dispatch.delivery_counts import DeliveryCounts
from txnframework.broker.dispatch.delivery_loop import DeliveryLoop
from txnframework.broker.dispatch.durable_counts import DurableCounts
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.broker.dispatch.read_ahead import ReadAhead
from txnframework.broker.dispatch.refresh import RefreshTrigger
from txnframework.broker.events import Event, log_event
from txnframework.broker.lease_names import dispatching_lease
from txnframework.broker.segments import OpenSegment, SegmentSubscription
from txnframework.config import SubscriptionsSection
from txnframework.environment import Environment
from txnframework.errors import Closed, LeaseLost, TxnFrameworkError
from txnframework.interfaces import IDispatcher, ILease, IMetadataStore, ITransactionCoordinator
from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, CursorMove, state_of
from txnframework.model.dispatch import Ordering
from txnframework.model.ids import Branch, TxnID
from txnframework.model.positions import Position
from txnframework.runtime.tasks import RetryingTasks


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
    process: str
    bounds: SubscriptionsSection
    own_transactions: OwnTransactions


class SegmentDispatch:
    """
    Delivers the messages of a segment to the consumers of a subscription in this process, while it holds the lease.

    Everything in its memory can be read again from the stores. A lease holder that was paused and resumes can only
    fail. Consumers use it through ``Attachment``.
    """

    def __init__(
        self, parts: DispatchParts, lease: ILease, earlier: DeliveryCounts, *, may_be_replaced: bool = False
    ) -> None:
        self._may_be_replaced = may_be_replaced
        self.subscription_type = parts.subscription_type
        self.segment = parts.segment.name
        self.environment = parts.environment
        self.dispatcher = parts.dispatcher
        self.ended: Exception | None = None
        """Why the dispatch has ended; None while it runs."""
        self._parts = parts
        self._lease = lease
        self._earlier = earlier
        self.counting: DurableCounts | None = None
        """The counts in the store, if a consumer needs them."""
        self.tenure = object()
        """Identifies deliveries under this lease."""
        # Only without any order can a message be held back, and the messages behind it be delivered.
        delays = parts.dispatcher.ordering is Ordering.NONE
        self.deliveries = Deliveries(parts.own_transactions.outcomes.counts, delays=delays)
        self.progress = AckProgress(self.deliveries)
        self.consumers = AttachedConsumers(parts.dispatcher, self.deliveries, parts.bounds, self.tenure)
        self._refreshing = asyncio.Lock()
        self._cursor_acks = CursorAckWriter(parts.subscription.cursor, parts.environment, parts.bounds.cursor_delay_ms)
        self._trigger = RefreshTrigger(
            parts.store,
            parts.coordinator,
            parts.environment,
            self.deliveries,
            self.refresh,
            parts.own_transactions.on_end,
        )
        reading = ReadAhead(parts.segment, self.deliveries, parts.bounds)
        self.loop = DeliveryLoop(reading, self.consumers, self._cursor_acks, parts.environment, self._trigger.request)
        self.acks = AckRecorder(self, self.progress, self._cursor_acks, parts.subscription.pending_acks)
        self.tasks = RetryingTasks(parts.environment, self._end_with)

    async def start(self) -> None:
        """
        Read acknowledgments, then headers, then the cursor, and start to deliver.

        :raises SubscriptionNotFound: the subscription does not exist.
        """
        subscription = self._parts.subscription
        await self._trigger.arm(self.segment, subscription.name, subscription.cursor)
        subscription.cursor.on_move = self._moved
        await self.refresh()
        trigger = self._trigger
        ends = (trigger.run_on_reported_ends, trigger.run_on_transaction_ends)
        for work in (self.loop.run, trigger.run_on_changes, *ends, self._until_lease_lost):
            self.tasks.start(work)
        if self._may_be_replaced:
            self.tasks.start(self._until_replaced)

    def is_of(self, life: int) -> bool:
        """Return whether the segment belongs to this life of its topic."""
        return self._parts.segment.is_of(life)

    def is_before(self, life: int) -> bool:
        """Return whether the segment belongs to an earlier life of its topic, so that it was deleted."""
        return not self.is_of(life) and self._parts.segment.life < life

    async def close(self) -> None:
        """Stop, notify the consumers, and release the lease; a second call is allowed."""
        self._end_with(Closed(f"dispatching of {self.segment} was stopped"))
        if self._parts.subscription.cursor.on_move == self._moved:
            self._parts.subscription.cursor.on_move = None
        await self.tasks.stop()
        self.loop.reading.stop_watching()
        await self._cursor_acks.finish()
        await self._trigger.close()
        if self.counting is not None:
            # Before the lease: the next dispatch must find the counts. Without this write it takes this one for dead.
            with suppress(TxnFrameworkError):
                await self.counting.end(self.incarnation, self.deliveries.redeliveries())
        await self._lease.release()

    async def count_durably(self) -> None:
        """
        Count deliveries in the store from now on, and take over the counts of earlier processes.

        :raises Unavailable: the store cannot be asked now.
        """
        cursor = self.loop.cursor
        if self.counting is not None or cursor is None:
            return
        token = f"{self.environment.random_bits(64):016x}"
        counting = DurableCounts(self._parts.store, self.segment, self._parts.subscription.name, token, self.deliveries)
        counts = await counting.begin(cursor)
        if cursor.incarnation == self.incarnation:
            self.deliveries.remember(counts)
        self.counting = counting

    @property
    def incarnation(self) -> int:
        """The incarnation of the cursor under which messages are read."""
        return self.loop.incarnation

    @property
    def redeliveries(self) -> DeliveryCounts:
        """The delivery counts of unacknowledged messages, for the next dispatch."""
        return DeliveryCounts(self.incarnation, self.deliveries.redeliveries())

    # -- consumers ------------------------------------------------------------------------------------

    def attach(self, request: AttachRequest, listener: Listener) -> int:
        """
        Add a consumer, and return its id in this dispatch.

        :raises ConsumerBusy: the type allows one consumer only, and the subscription has one.
        :raises LeaseLost: the lease was lost since the dispatch began.
        """
        if isinstance(self.ended, LeaseLost):
            raise LeaseLost(self.ended.name) from self.ended
        self.require_running()
        consumer_id = self.consumers.attach(request, listener)
        if not request.shares:
            self.loop.retiring = False
        self.loop.woken.set()
        return consumer_id

    @property
    def may_be_given_up(self) -> bool:
        """Whether all consumers share the topic's segments with other processes."""
        return self.consumers.all_share()

    async def keep(self) -> None:
        """Deliver again: the segment is not given up."""
        # Messages that others acknowledged in the meantime must not be delivered.
        await self.refresh()
        self.loop.retiring = False
        self.loop.woken.set()

    def release(self, positions: frozenset[Position]) -> None:
        """Let the dispatcher assign what it has assigned: these messages wait again, or are finished."""
        self.dispatcher.released(positions)
        self.loop.woken.set()

    # -- acknowledging --------------------------------------------------------------------------------

    def batch_size(self, position: Position) -> int | None:
        """Return the batch size of a message that was read here and is not finished; otherwise None."""
        held = self.deliveries.messages.get(position)
        return None if held is None else held.batch_size

    def is_held(self, position: Position) -> bool:
        """Return whether an acknowledgment of a message is in progress, or pending as of the last refresh."""
        return self.ended is None and self.progress.is_held(position)

    def is_attached(self, consumer_id: int) -> bool:
        """Return whether a consumer is attached and the lease is held."""
        return self.ended is None and consumer_id in self.consumers.by_id

    def remove_finished(self, done: Iterable[HeldMessage]) -> None:
        """Remove messages that are acknowledged."""
        gone = self.deliveries.forget(done)
        if self.counting is not None:
            self.counting.finished(gone)
        self.release(gone)

    def _moved(self, move: CursorMove) -> None:
        """
        Remove messages that were acknowledged in a transaction, after its commit has moved the cursor past them.

        The cursor includes them, as after an acknowledgment outside transactions, so no refresh is needed. It is needed
        for a message that is not known to be held by the transaction.
        """
        if move.incarnation != self.incarnation:
            return
        for branch, acks in move.parts:
            done, is_whole = self.progress.held_by(branch, acks)
            self.progress.finished_in(branch, done)
            self.remove_finished(done)
            if not is_whole:
                self._trigger.request()

    # -- refreshing from the stores -------------------------------------------------------------------

    async def refresh(self) -> None:
        """Update the messages from the stores: read acknowledgments, then headers, then the cursor."""
        async with self._refreshing:
            refresh = self.progress.begin_refresh()
            pending = await self._parts.subscription.pending_acks.recover()
            cursor = await self._parts.subscription.cursor.load()
            open_acks = OpenAcks(pending.open, cursor.incarnation)
            if self.loop.cursor is None or self.loop.cursor.incarnation != cursor.incarnation:
                freed = self._begin_at(cursor)
            else:
                freed = self.progress.reconcile(cursor, open_acks, refresh, self.loop.cursor)
            self.loop.cursor, self.loop.open_acks = cursor, open_acks
            if self.counting is not None:
                suspects = tuple(self.counting.suspects)
                self.counting.finished(at for at in suspects if state_of(cursor, at) is AckState.DELETED)
            self.release(freed)
            for branch in self.progress.claims.crowded():
                await self.load_outcome(branch)

    def request_refresh(self) -> None:
        """Request a refresh soon."""
        self._trigger.request()

    def expect_end(self, txn_id: TxnID) -> None:
        """Let a transaction that is about to hold messages report its end."""
        self._trigger.expect_end(txn_id)

    async def load_outcome(self, branch: Branch) -> None:
        """Load the outcome of a transaction in which this process acknowledged."""
        if self._parts.coordinator is not None:
            await self._parts.own_transactions.outcomes.load(self._parts.coordinator, branch)

    def _begin_at(self, cursor: Cursor) -> frozenset[Position]:
        """Forget all messages and read from the cursor, at the first refresh or after a seek."""
        freed = self.deliveries.clear()
        self.deliveries.remember(self._earlier.under(cursor))
        self._earlier = DeliveryCounts()
        self.loop.begin_at(cursor)
        self.consumers.notify(lambda listener: listener.reset())
        return freed

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
        if isinstance(error, LeaseLost):
            name, process = self._parts.subscription.name, self._parts.process
            sentence = f"{process} no longer dispatches {self.segment} to {name}: its lease was lost"
            log_event(WARNING, Event.LEASE_LOST, sentence, segment=self.segment, subscription=name, process=process)
        self.consumers.notify(lambda listener: listener.ended(error))
        self.consumers.by_id.clear()

    def require_running(self) -> None:
        """Raise Closed if the dispatch has ended."""
        if self.ended is not None:
            raise Closed(f"dispatching of {self.segment} has ended: {self.ended}") from self.ended
