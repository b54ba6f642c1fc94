"""The ``failover`` dispatcher: one active consumer receives all messages, in order; the others stand by."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.interfaces import IDispatcher
from txnframework.model.dispatching import Assignment, Candidate, ConsumerInfo, Ordering
from txnframework.model.positions import Position
from txnframework.plugin import DispatcherContext
from txnframework_dispatchers._permits import Attached, Consumers


@implementer(IDispatcher)
class FailoverDispatcher:
    """
    Assigns every message to the active consumer; when it detaches, the next in order becomes active.

    The active consumer is not interrupted, because it may be processing messages that cannot be recalled. A consumer
    with a better priority therefore becomes active only when the active one detaches.
    """

    subscription_type: str = "failover"
    ordering: Ordering = Ordering.SEGMENT
    stands_by: bool = True

    def __init__(self) -> None:
        self._consumers = Consumers()
        self._active: Attached | None = None

    def attach(self, consumer: ConsumerInfo) -> None:
        """Add a consumer; it becomes active if no other consumer is active."""
        self._consumers.add(consumer)
        self._active = self._active or self._next()

    def detach(self, consumer_id: int) -> frozenset[Position]:
        """Remove a consumer; return its outstanding messages. The next consumer gets none until they are released."""
        held = self._consumers.remove(consumer_id)
        if self._active is not None and self._active.info.consumer_id == consumer_id:
            self._active = self._next()
        return held

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let the consumer take ``messages`` more once it is active."""
        self._consumers.permit(consumer_id, messages)

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign the first waiting messages, as many as the active consumer can take."""
        if self._active is None or self._consumers.left_behind:
            return ()
        return self._active.take_first(waiting)

    def released(self, positions: frozenset[Position]) -> None:
        """Forget which consumer had these messages."""
        self._consumers.release(positions)

    def _next(self) -> Attached | None:
        """Return the next consumer: the lowest priority number, then the earliest to attach."""
        return min(self._consumers.by_id.values(), key=lambda one: one.info.priority, default=None)


async def open_failover(_: DispatcherContext) -> IDispatcher:
    """Create the dispatcher of one subscription on one segment."""
    return FailoverDispatcher()
