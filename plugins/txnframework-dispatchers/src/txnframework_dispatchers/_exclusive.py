"""The ``exclusive`` dispatcher: a single consumer receives all messages, in order."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.errors import ConsumerBusy
from txnframework.interfaces import IDispatcher
from txnframework.model.dispatching import Assignment, Candidate, ConsumerInfo, Ordering
from txnframework.model.positions import Position
from txnframework.plugin import DispatcherContext
from txnframework_dispatchers._permits import Consumers


@implementer(IDispatcher)
class ExclusiveDispatcher:
    """
    Assigns every message to the only consumer that may attach.

    A message that is redelivered is assigned before all later ones, so its consumer receives the segment's order again.
    """

    subscription_type: str = "exclusive"
    ordering: Ordering = Ordering.SEGMENT
    stands_by: bool = False

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription
        self._consumers = Consumers()

    def attach(self, consumer: ConsumerInfo) -> None:
        """Add the consumer, or raise ConsumerBusy if another one is attached."""
        for there in self._consumers.by_id.values():
            if there.info.consumer_id != consumer.consumer_id:
                raise ConsumerBusy(self._subscription, there.info.name)
        self._consumers.add(consumer)

    def detach(self, consumer_id: int) -> frozenset[Position]:
        """Remove a consumer; return its outstanding messages. No message is assigned until they are released."""
        return self._consumers.remove(consumer_id)

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let the consumer take ``messages`` more."""
        self._consumers.permit(consumer_id, messages)

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign the first waiting messages, as many as the consumer can take."""
        if self._consumers.left_behind:
            return ()
        for attached in self._consumers.by_id.values():
            return attached.take_first(waiting)
        return ()

    def released(self, positions: frozenset[Position]) -> None:
        """Forget which consumer had these messages."""
        self._consumers.release(positions)


async def open_exclusive(context: DispatcherContext) -> IDispatcher:
    """Create the dispatcher of one subscription on one segment."""
    return ExclusiveDispatcher(context.subscription)
