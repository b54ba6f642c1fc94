"""The subscription type ``relay``: everything in order, and consumers take over from each other."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.interfaces import IDispatcher
from txnframework.model import Assignment, Candidate, ConsumerInfo, Ordering, Position
from txnframework.plugin import DispatcherContext, Provider, hookimpl


@implementer(IDispatcher)
class RelayDispatcher:
    """When everything that a consumer was given is done, the next one in turn goes on."""

    subscription_type: str = "relay"
    ordering: Ordering = Ordering.SEGMENT
    stands_by: bool = True

    def __init__(self) -> None:
        self._permits: dict[int, int] = {}  # in order of their turns
        self._outstanding: dict[Position, int] = {}

    def attach(self, consumer: ConsumerInfo) -> None:
        """Add a consumer; its turn comes last."""
        self._permits.setdefault(consumer.consumer_id, consumer.permits)

    def detach(self, consumer_id: int) -> frozenset[Position]:
        """Remove a consumer; return what it was given and has not done."""
        if self._permits.pop(consumer_id, None) is None:
            return frozenset()
        return frozenset(position for position, holder in self._outstanding.items() if holder == consumer_id)

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let a consumer take ``messages`` more."""
        if consumer_id in self._permits:
            self._permits[consumer_id] += messages

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign the first waiting messages to the consumer whose turn it is."""
        able = (consumer for consumer, permits in self._permits.items() if permits)
        taker = next(iter(self._outstanding.values()), None) or next(able, None)
        if taker is None or taker not in self._permits:  # what a consumer left is not overtaken
            return ()
        given = [candidate.position for candidate in waiting[: self._permits[taker]]]
        self._permits[taker] = self._permits.pop(taker) - len(given)  # its next turn comes last
        self._outstanding |= dict.fromkeys(given, taker)
        return tuple(Assignment(taker, position) for position in given)

    def released(self, positions: frozenset[Position]) -> None:
        """Forget messages that are done, or that will be assigned again."""
        for position in positions:
            self._outstanding.pop(position, None)


async def open_relay(_: DispatcherContext) -> IDispatcher:
    """Create the dispatcher of one subscription on one segment."""
    return RelayDispatcher()


@hookimpl
def txnframework_dispatchers() -> list[Provider[DispatcherContext, IDispatcher]]:
    """Provide ``relay``."""
    return [Provider("relay", open_relay, RelayDispatcher)]
