"""One consumer gets everything, in order; the others stand by."""

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
    Gives every message to the active consumer; when that one leaves, the next in order becomes active.

    The active one is not interrupted: it may be in the middle of its work, and what it has cannot be called back. So
    a better priority counts only when a place is free.
    """

    subscription_type: str = "failover"
    ordering: Ordering = Ordering.SEGMENT
    stands_by: bool = True

    def __init__(self) -> None:
        self._consumers = Consumers()
        self._active: Attached | None = None

    def attach(self, consumer: ConsumerInfo) -> None:
        """Add a consumer; it is active if nobody is."""
        self._consumers.add(consumer)
        self._active = self._active or self._next()

    def detach(self, consumer_id: int) -> frozenset[Position]:
        """Remove it; return what it held, which the next one does not overtake."""
        held = self._consumers.remove(consumer_id)
        if self._active is not None and self._active.info.consumer_id == consumer_id:
            self._active = self._next()
        return held

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let it take that many more, once it is active."""
        self._consumers.permit(consumer_id, messages)

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign the first of them, as many as the active consumer takes."""
        if self._active is None or self._consumers.left_behind:
            return ()
        return self._active.take_first(waiting)

    def released(self, positions: frozenset[Position]) -> None:
        """Forget who had these."""
        self._consumers.release(positions)

    def _next(self) -> Attached | None:
        """Return the first in order: the lowest priority number, then whoever attached first."""
        return min(self._consumers.by_id.values(), key=lambda one: one.info.priority, default=None)


async def open_failover(_: DispatcherContext) -> IDispatcher:
    """Make the dispatcher of one subscription on one segment."""
    return FailoverDispatcher()
