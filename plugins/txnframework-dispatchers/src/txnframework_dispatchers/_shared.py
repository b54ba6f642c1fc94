"""The ``shared`` dispatcher: consumers receive messages in turn."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.interfaces import IDispatcher
from txnframework.model.dispatching import Assignment, Candidate, ConsumerInfo, Ordering
from txnframework.model.positions import Position
from txnframework.plugin import DispatcherContext
from txnframework_dispatchers._permits import Attached, Consumers
from txnframework_dispatchers._turns import Turns


@implementer(IDispatcher)
class SharedDispatcher:
    """
    Assigns messages in turn to the consumers that have permits and the lowest priority number among these.

    Each message is assigned to one consumer at a time; the order in which messages are processed is not defined.
    """

    subscription_type: str = "shared"
    ordering: Ordering = Ordering.NONE
    stands_by: bool = False

    def __init__(self) -> None:
        self._consumers = Consumers()
        self._turns = Turns()

    def attach(self, consumer: ConsumerInfo) -> None:
        """Add a consumer; any number may be attached."""
        self._consumers.add(consumer)

    def detach(self, consumer_id: int) -> frozenset[Position]:
        """Remove a consumer; return its outstanding messages."""
        return self._consumers.remove(consumer_id)

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let the consumer take ``messages`` more."""
        self._consumers.permit(consumer_id, messages)

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign messages while any consumer has permits."""
        assigned = []
        for candidate in waiting:
            attached = self._next()
            if attached is None:
                break
            assigned.append(attached.take(candidate))
        return tuple(assigned)

    def released(self, positions: frozenset[Position]) -> None:
        """Forget which consumer had these messages."""
        self._consumers.release(positions)

    def _next(self) -> Attached | None:
        """Return the consumer whose turn it is among those with permits and the lowest priority number, or None."""
        able = [one for one in self._consumers.by_id.values() if one.permits > 0]
        first = min((one.info.priority for one in able), default=0)
        return self._turns.next(one for one in able if one.info.priority == first)


async def open_shared(_: DispatcherContext) -> IDispatcher:
    """Create the dispatcher of one subscription on one segment."""
    return SharedDispatcher()
