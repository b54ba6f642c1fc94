"""A consumer's side of a dispatch: what it gets, gives back and acknowledges."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from txnframework.broker.dispatch.acknowledgments import SizedPosition
from txnframework.broker.dispatch.acks_in_progress import AckInProgress
from txnframework.broker.dispatch.segment_dispatch import SegmentDispatch
from txnframework.errors import LeaseLost
from txnframework.interfaces import IPendingAckStore
from txnframework.model.acks import AckRequest
from txnframework.model.ids import Branch
from txnframework.model.positions import Position


@dataclass(frozen=True, slots=True)
class SubscriptionRef:
    """
    A subscription on a segment, with its subscription type.

    ``life``: the life of the topic that the consumer joined; see ``OpenSegment.is_of``.
    """

    topic: str
    subscription: str
    segment: str
    subscription_type: str
    life: int

    @property
    def key(self) -> tuple[str, str]:
        """The key of its dispatch."""
        return self.segment, self.subscription


@dataclass(frozen=True, slots=True)
class Attachment:
    """
    A consumer that is attached to a dispatch.

    After the dispatch has ended or the consumer was detached, calls that change messages have no effect, and
    acknowledgments raise Closed.
    """

    ref: SubscriptionRef
    dispatch: SegmentDispatch
    consumer_id: int

    @property
    def is_active(self) -> bool:
        """Whether the lease is held, and the consumer does not stand by behind another one."""
        return self.dispatch.ended is None and self.dispatch.consumers.is_active(self.consumer_id)

    @property
    def is_at_limit(self) -> bool:
        """Whether messages wait, and the consumer has to acknowledge some before it gets more."""
        return self.dispatch.consumers.is_at_limit(self.consumer_id)

    @property
    def is_last(self) -> bool:
        """Whether the segment is sealed and delivered, and no other consumer has any of its messages."""
        return self.dispatch.loop.drained and self.dispatch.deliveries.consumers() <= {self.consumer_id}

    @property
    def is_done(self) -> bool:
        """Whether the segment is sealed, and all its messages are acknowledged."""
        return self.dispatch.loop.done

    @property
    def is_quiet(self) -> bool:
        """Whether no consumer has a message whose acknowledgment was not recorded."""
        return self.dispatch.loop.is_quiet

    def permit(self, messages: int) -> None:
        """Permit this many more messages."""
        consumer = self.dispatch.consumers.by_id.get(self.consumer_id)
        if consumer is not None:
            consumer.owed += messages
            self.dispatch.loop.woken.set()

    def pause(self, unseen: frozenset[Position]) -> None:
        """Deliver nothing more until ``resume``; messages in ``unseen`` go to other consumers."""
        self.dispatch.consumers.pause(self.consumer_id)
        self.give_back((), unseen)

    def resume(self) -> None:
        """Deliver again, after ``pause``."""
        self.dispatch.consumers.resume(self.consumer_id)
        self.dispatch.loop.woken.set()

    def hand_out(self, position: Position, number: int) -> bool:
        """
        Return whether a delivery is still valid, so that the user may receive it, and permit another message.

        Messages that were given back or acknowledged must not be handed out.
        """
        consumer = self.dispatch.consumers.by_id.get(self.consumer_id)
        if consumer is not None:
            consumer.owed += 1
            self.dispatch.loop.woken.set()
        return self.dispatch.ended is None and self.dispatch.deliveries.hand_out(self.consumer_id, position, number)

    def delivered(self) -> frozenset[Position]:
        """Return the positions of the messages that the consumer has."""
        return frozenset(self.dispatch.deliveries.delivered_to(self.consumer_id))

    async def detach(self, unseen: frozenset[Position]) -> None:
        """
        Remove the consumer; its unacknowledged messages go to others, those in ``unseen`` as if never delivered.

        After the loss of the lease, no delivery counts: the user may still handle the messages.
        """
        dispatch = self.dispatch
        if isinstance(dispatch.ended, LeaseLost):
            unseen |= self.delivered()
        had: frozenset[Position] | None = None
        try:
            had = dispatch.consumers.detach(self.consumer_id)
            if had is not None and dispatch.consumers.by_id:
                await self.return_delivered(None, lambda: unseen)
        finally:
            dispatch.deliveries.detach(self.consumer_id, unseen)
            # Each of its messages waits again, in its order, or is held by a transaction. So the dispatcher may assign
            # later ones.
            dispatch.release(had or frozenset())

    # -- giving back ----------------------------------------------------------------------------------

    def retire(self, unseen: frozenset[Position]) -> None:
        """
        Deliver nothing more, so that the segment can be given up when its consumers have acknowledged what they have.

        The messages in ``unseen``, which the user has not received, wait again. Call this for each consumer.
        """
        self.dispatch.loop.retiring = True
        self._requeue(unseen, unseen)

    async def return_delivered(
        self, positions: Iterable[Position] | None, unseen: Callable[[], frozenset[Position]]
    ) -> None:
        """
        Redeliver these messages to the next consumer; with None, all that the consumer did not acknowledge.

        ``unseen`` is called at the time of the decision, and returns the positions that the user has not received. With
        None, these are redelivered without being counted. With ``positions``, they are left alone, because they are
        already being redelivered.
        """
        # Messages that others acknowledged in the meantime must not be redelivered.
        await self.dispatch.refresh()
        hidden = unseen()
        if positions is None:
            self._requeue(self.dispatch.deliveries.delivered_to(self.consumer_id), hidden)
            self.dispatch.deliveries.forget_received(self.consumer_id)
        else:
            self._requeue(set(positions) - hidden, hidden)

    def return_later(
        self, positions: tuple[Position, ...], delay_ms: int, unseen: Callable[[], frozenset[Position]]
    ) -> None:
        """Redeliver messages after ``delay_ms``, unless they are acknowledged before; see ``return_delivered``."""
        due_ms = self.dispatch.environment.now_ms() + delay_ms

        async def wait() -> None:
            await self.dispatch.environment.sleep_until(due_ms)
            await self.return_delivered(positions, unseen)

        self.dispatch.tasks.start(wait)

    def give_back(self, failed: Iterable[Position], spared: Iterable[Position]) -> None:
        """Let messages wait again, in their order; only a delivery of the ``failed`` ones counts."""
        uncounted = frozenset(spared)
        self._requeue({*failed, *uncounted}, uncounted)

    def left_behind(self) -> dict[Position, Branch | None]:
        """Return the messages that others may finish after the loss of the lease; see ``AckProgress.left_behind``."""
        return self.dispatch.progress.left_behind(self.consumer_id)

    def _requeue(self, positions: Iterable[Position], uncounted: frozenset[Position]) -> None:
        """Let messages of the consumer wait again; deliveries of the ``uncounted`` ones do not count."""
        returned = self.dispatch.deliveries.requeue(positions, self.consumer_id, uncounted)
        self.dispatch.release(frozenset(returned))

    # -- acknowledging --------------------------------------------------------------------------------

    def has(self, position: Position) -> bool:
        """Return whether the consumer has a message that is neither acknowledged nor given back."""
        return self.dispatch.ended is None and self.dispatch.deliveries.has(self.consumer_id, position)

    def was_given(self, position: Position) -> bool:
        """Return whether this dispatch gave an unfinished message to the user."""
        held = self.dispatch.deliveries.messages.get(position)
        return held is not None and held.given_to == self.consumer_id

    def was_taken_back(self, position: Position) -> bool:
        """Return whether an unfinished message is not given to the user now: it was given back, or to another user."""
        held = self.dispatch.deliveries.messages.get(position)
        return held is not None and held.given_to != self.consumer_id

    async def first_lost(self, upto: Position) -> Position | None:
        """Return the first message up to here that the user received and others finished; None if there is none."""
        return await self.dispatch.acks.first_lost(upto, self.consumer_id)

    async def ack(
        self, messages: tuple[SizedPosition, ...], incarnation: int, holder: Branch | None, principal: str
    ) -> None:
        """
        Acknowledge messages individually, in ``holder`` or (None) outside transactions.

        Outside transactions, messages that a transaction holds are skipped, and so are messages delivered under another
        incarnation.

        :raises TransactionConflict: another transaction holds one of the messages, or one is finished; nothing is
            acknowledged.
        """
        dispatch = self.dispatch
        dispatch.require_running()
        try:
            if incarnation == dispatch.incarnation:
                await dispatch.acks.single(
                    messages, incarnation, holder, principal, lambda: dispatch.loop.reading.upto, self.consumer_id
                )
            elif holder is not None:
                await dispatch.acks.outdated(messages, incarnation, holder, principal)
        finally:
            dispatch.loop.wake_if_retiring()

    @property
    def pending_acks(self) -> IPendingAckStore:
        """The store that records acknowledgments in transactions."""
        return self.dispatch.acks.pending_acks

    def begin_joint_ack(self, messages: tuple[SizedPosition, ...], request: AckRequest) -> AckInProgress | None:
        """
        Mark messages whose acknowledgment is about to take effect in the only step of its transaction.

        None if they need the usual steps. Call ``end_joint_ack`` after the outcome was noted.
        """
        if not self.dispatch.is_attached(self.consumer_id):
            return None
        return self.dispatch.acks.begin_joint(messages, request, self.consumer_id)

    def end_joint_ack(self) -> None:
        """Let the segment be given up, if that was to wait for an acknowledgment."""
        self.dispatch.loop.wake_if_retiring()

    async def ack_cumulative(
        self, message: SizedPosition, incarnation: int, holder: Branch | None, principal: str
    ) -> None:
        """
        Acknowledge a message and all messages before it in this segment.

        In a transaction this covers the messages that the message's consumer received and has not acknowledged itself.
        If the message was not delivered here, that is this consumer.

        :raises TransactionConflict: another transaction holds some of the messages, the message is finished already, or
            others have finished some of the covered messages.
        """
        dispatch = self.dispatch
        dispatch.require_running()
        try:
            if incarnation == dispatch.incarnation:
                named = None if holder is None else dispatch.deliveries.messages.get(message[0])
                consumer = self.consumer_id if named is None or named.given_to is None else named.given_to
                await dispatch.acks.cumulative(message, incarnation, holder, principal, consumer)
            elif holder is not None:
                await dispatch.acks.outdated((message,), incarnation, holder, principal)
        finally:
            dispatch.loop.wake_if_retiring()

    async def ack_given(self, upto: Position, holder: Branch | None, principal: str) -> None:
        """
        Acknowledge cumulatively the unacknowledged messages that the user received up to here.

        In a transaction, messages that the consumer acknowledged itself are excluded.

        :raises TransactionConflict: as for ``ack_cumulative``.
        """
        dispatch = self.dispatch
        dispatch.require_running()
        if holder is not None:
            await dispatch.acks.all_given(upto, dispatch.incarnation, holder, principal, self.consumer_id)
            return
        last = max((one for one in dispatch.progress.upto(upto) if not dispatch.progress.is_held(one)), default=None)
        if last is not None:
            size = dispatch.batch_size(last) or 1
            await self.ack_cumulative((last, size), dispatch.incarnation, None, principal)
