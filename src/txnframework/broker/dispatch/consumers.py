"""The consumers of one dispatch: their permits, and the messages that they get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnframework.broker.dispatch.deliveries import Deliveries, HeldMessage
from txnframework.config import SubscriptionsSection
from txnframework.interfaces import IDispatcher, ISingleActiveDispatcher
from txnframework.model.dispatch import ConsumerInfo
from txnframework.model.positions import Position

OFFER_MAX = 1_000
"""The number of waiting messages that a dispatcher is offered at once."""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """
    A consumer that attaches; ``permits`` is the number of messages that it accepts at first.

    ``named``: the caller chose the name. ``replaces``: the consumer takes the lease from an earlier consumer of this
    name, whose process may be dead, without waiting for the end of its session. ``counts_durably``: deliveries are
    counted in the store too. ``shares``: the consumer shares the topic's segments with other processes, so the segment
    may be given up.
    """

    name: str
    permits: int
    priority: int = 0
    named: bool = False
    replaces: bool = False
    counts_durably: bool = False
    shares: bool = False


@dataclass(frozen=True, slots=True)
class Listener:
    """
    The callbacks of a consumer; they are called synchronously.

    * ``deliver``: a message was delivered. It was read under this incarnation of the cursor, by the dispatch with this
      tenure. Its ``delivery`` is the argument for ``SegmentDispatch.hand_out``.
    * ``reset``: the subscription was moved, and all deliveries are void.
    * ``progressed``: ``drained_by``, ``done`` and ``is_active`` may have changed.
    * ``ended``: no more messages will be delivered, for this reason.
    """

    deliver: Callable[[HeldMessage, int, object], None]
    reset: Callable[[], None]
    progressed: Callable[[], None]
    ended: Callable[[Exception], None]


@dataclass(slots=True)
class AttachedConsumer:
    """
    An attached consumer: ``owed`` permits it requested, ``granted`` ones the dispatcher has and did not use.

    ``full_at``: the number of messages that the consumer had when a further one was too large. It gets no message until
    it has fewer. ``paused``: it gets no message until it is resumed, and keeps those that it has.
    """

    listener: Listener
    owed: int
    shares: bool = False
    granted: int = 0
    full_at: int | None = None
    paused: bool = False


class AttachedConsumers:
    """
    Grants permits to the dispatcher as consumers request messages and acknowledge them.

    ``bounds`` limits the messages and bytes that a consumer may have unacknowledged. At the limit it gets no more until
    it acknowledges some. A message larger than the limit is delivered alone.
    """

    def __init__(
        self, dispatcher: IDispatcher, deliveries: Deliveries, bounds: SubscriptionsSection, tenure: object
    ) -> None:
        self._dispatcher = dispatcher
        self._deliveries = deliveries
        self._messages_max = bounds.unacknowledged_messages_max
        self._bytes_max = bounds.unacknowledged_bytes_max
        self._tenure = tenure
        self.by_id: dict[int, AttachedConsumer] = {}
        """The attached consumers."""
        self._next_id = 1

    def attach(self, request: AttachRequest, listener: Listener) -> int:
        """
        Add a consumer, and return its id.

        :raises ConsumerBusy: the type allows one consumer only, and the subscription has one.
        """
        consumer_id, self._next_id = self._next_id, self._next_id + 1
        self._dispatcher.attach(ConsumerInfo(consumer_id, request.name, request.priority))
        self.by_id[consumer_id] = AttachedConsumer(listener, request.permits, request.shares)
        return consumer_id

    def detach(self, consumer_id: int) -> frozenset[Position] | None:
        """
        Remove a consumer, and return the positions of its messages; None if it is not attached.

        The dispatcher lets no message overtake these until they are released.
        """
        if self.by_id.pop(consumer_id, None) is None:
            return None
        held = self._dispatcher.detach(consumer_id)
        if ISingleActiveDispatcher.providedBy(self._dispatcher):
            active = self._dispatcher.active
            if active is not None and active in self.by_id:
                self.by_id[active].listener.progressed()
        return held

    def is_active(self, consumer_id: int) -> bool:
        """Return whether a consumer is attached, and does not stand by behind another one here."""
        if ISingleActiveDispatcher.providedBy(self._dispatcher):
            return consumer_id in self.by_id and self._dispatcher.active == consumer_id
        return consumer_id in self.by_id

    def is_at_limit(self, consumer_id: int) -> bool:
        """Return whether messages wait, and a consumer has to acknowledge some before it gets more."""
        consumer = self.by_id.get(consumer_id)
        if consumer is None or consumer.paused or not self._deliveries.waiting:
            return False
        return self._is_full(consumer_id, consumer) or self._room(consumer_id) <= 0

    def pause(self, consumer_id: int) -> None:
        """Give a consumer no more messages; one that is not attached is ignored."""
        consumer = self.by_id.get(consumer_id)
        if consumer is not None:
            consumer.paused = True

    def resume(self, consumer_id: int) -> None:
        """Give a paused consumer messages again; one that is not attached is ignored."""
        consumer = self.by_id.get(consumer_id)
        if consumer is not None:
            consumer.paused = False

    def all_share(self) -> bool:
        """Return whether every attached consumer shares the topic's segments with other processes."""
        return all(consumer.shares for consumer in self.by_id.values())

    def notify(self, call: Callable[[Listener], None]) -> None:
        """Call a function with each consumer's listener."""
        for consumer in tuple(self.by_id.values()):
            call(consumer.listener)

    def offer(self, incarnation: int) -> bool:
        """Let the dispatcher assign the waiting messages, at least one; return whether it assigned any."""
        self._grant()
        assigned = self._dispatcher.assign(self._deliveries.candidates(OFFER_MAX))
        unused: set[Position] = set()
        for one in assigned:
            taker = self.by_id.get(one.consumer_id)
            takes = taker is not None and self._takes(one.consumer_id, taker, one.position)
            held = self._deliveries.deliver(one.position, one.consumer_id) if takes else None
            if taker is not None:
                taker.granted -= 1
            if taker is None or held is None:  # the message is too large, or it was not waiting
                unused.add(one.position)
                if taker is not None:
                    taker.owed += 1
                continue
            taker.listener.deliver(held, incarnation, self._tenure)
        if unused:
            self._dispatcher.released(frozenset(unused))
        return bool(assigned)

    def _takes(self, consumer_id: int, consumer: AttachedConsumer, position: Position) -> bool:
        """
        Return whether a consumer has room for a message that was assigned to it.

        Permits are calculated from the messages that waited when they were granted. If others took these, the permits
        are left for larger messages. After a message that is too large, the consumer takes none, so that its messages
        stay in order.
        """
        if consumer.paused or (consumer.full_at is not None and self._is_full(consumer_id, consumer)):
            return False
        delivered = self._deliveries.delivered[consumer_id]
        held = self._deliveries.messages.get(position) if delivered else None
        if held is not None and held.size_bytes > self._bytes_max - self._deliveries.delivered_bytes[consumer_id]:
            consumer.full_at = delivered
            return False
        return True

    def _is_full(self, consumer_id: int, consumer: AttachedConsumer) -> bool:
        """Return whether a message was too large for a consumer that has not acknowledged anything since."""
        if consumer.full_at is None:
            return False
        # A failed acknowledgment may have raised the number: then the consumer is full until it has fewer than that.
        delivered = self._deliveries.delivered[consumer_id]
        consumer.full_at = None if delivered < consumer.full_at else delivered
        return consumer.full_at is not None

    def _grant(self) -> None:
        """Grant each consumer the permits that it would need if it got all waiting messages, within its limits."""
        for consumer_id, consumer in tuple(self.by_id.items()):
            # A full or paused consumer is granted nothing: its permits run out, and others are assigned the messages.
            if not consumer.owed or consumer.paused:
                continue
            if consumer.full_at is not None and self._is_full(consumer_id, consumer):
                continue
            granted = min(consumer.owed, self._room(consumer_id) - consumer.granted)
            if granted > 0:
                consumer.owed -= granted
                consumer.granted += granted
                self._dispatcher.permit(consumer_id, granted)

    def _room(self, consumer_id: int) -> int:
        """Return how many of the waiting messages a consumer may have, by number and by size."""
        delivered = self._deliveries.delivered[consumer_id]
        fitting = self._deliveries.fitting(self._bytes_max - self._deliveries.delivered_bytes[consumer_id])
        return min(self._messages_max - delivered, fitting if delivered else max(1, fitting))
