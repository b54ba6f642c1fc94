"""Dispatchers with one active consumer, which receives all messages in order: ``exclusive`` and ``failover``."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.errors import ConsumerBusy
from txnframework.interfaces import IDispatcher, ISingleActiveDispatcher
from txnframework.model.dispatch import Assignment, Candidate, ConsumerInfo, Ordering
from txnframework.model.positions import Position
from txnframework.plugin import DispatcherContext
from txnframework_dispatchers._consumers import AttachedConsumer, ConsumerDispatcher


@implementer(IDispatcher)
class ExclusiveDispatcher(ConsumerDispatcher):
    """
    Assigns every message to the only consumer that may attach.

    A message that is redelivered is assigned before all later ones, so its consumer receives the segment's order again.
    """

    subscription_type: str = "exclusive"
    ordering: Ordering = Ordering.SEGMENT
    stands_by: bool = False

    def __init__(self, subscription: str) -> None:
        super().__init__()
        self._subscription = subscription

    def attach(self, consumer: ConsumerInfo) -> None:
        """Add the consumer, or raise ConsumerBusy if another one is attached."""
        for other in self._consumers.values():
            if other.info.consumer_id != consumer.consumer_id:
                raise ConsumerBusy(self._subscription, other.info.name)
        super().attach(consumer)

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign the first waiting messages, as many as the consumer can take."""
        if self._left_behind:
            return ()
        for attached in self._consumers.values():
            return attached.take_first(waiting)
        return ()


async def open_exclusive(context: DispatcherContext) -> IDispatcher:
    """Create the dispatcher of one subscription on one segment."""
    return ExclusiveDispatcher(context.subscription)


@implementer(ISingleActiveDispatcher)
class FailoverDispatcher(ConsumerDispatcher):
    """
    Assigns every message to the active consumer; when it detaches, the next in order becomes active.

    The active consumer is not interrupted, because it may be processing messages that cannot be recalled. A consumer
    with a better priority therefore becomes active only when the active one detaches.
    """

    subscription_type: str = "failover"
    ordering: Ordering = Ordering.SEGMENT
    stands_by: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._active: AttachedConsumer | None = None

    @property
    def active(self) -> int | None:
        """The id of the active consumer."""
        return None if self._active is None else self._active.info.consumer_id

    def attach(self, consumer: ConsumerInfo) -> None:
        """Add a consumer; it becomes active if no other consumer is active."""
        super().attach(consumer)
        self._active = self._active or self._next()

    def detach(self, consumer_id: int) -> frozenset[Position]:
        """Remove a consumer; return its outstanding messages. The next consumer gets none until they are released."""
        outstanding = super().detach(consumer_id)
        if self._active is not None and self._active.info.consumer_id == consumer_id:
            self._active = self._next()
        return outstanding

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign the first waiting messages, as many as the active consumer can take."""
        if self._active is None or self._left_behind:
            return ()
        return self._active.take_first(waiting)

    def _next(self) -> AttachedConsumer | None:
        """Return the next consumer: the lowest priority number, then the earliest to attach."""
        return min(self._consumers.values(), key=lambda one: one.info.priority, default=None)


async def open_failover(_: DispatcherContext) -> IDispatcher:
    """Create the dispatcher of one subscription on one segment."""
    return FailoverDispatcher()
