"""The consumers of one dispatch: what they can take, and who of them gets what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnframework.broker._dispatch.deliveries import Deliveries
from txnframework.broker._dispatch.parts import Delivery, Joining, Listener
from txnframework.interfaces import IDispatcher
from txnframework.model.dispatching import ConsumerInfo
from txnframework.model.positions import Position

OFFER_MAX = 1_000
"""How many waiting messages a dispatcher is shown at once."""


@dataclass(slots=True)
class _Consumer:
    """A consumer here: ``owed`` permits were asked for, ``granted`` ones the dispatcher has and did not use."""

    listener: Listener
    owed: int
    granted: int = 0


class AttachedConsumers:
    """
    Keeps the dispatcher's permits in step with what the consumers ask for and acknowledge.

    A consumer that has ``unacknowledged_max`` messages gets no more until it acknowledges some.
    """

    def __init__(self, dispatcher: IDispatcher, deliveries: Deliveries, unacknowledged_max: int) -> None:
        self._dispatcher = dispatcher
        self._deliveries = deliveries
        self._unacknowledged_max = unacknowledged_max
        self._consumers: dict[int, _Consumer] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._consumers)

    async def attach(self, joining: Joining, listener: Listener) -> int:
        """
        Add a consumer; return its id.

        :raises ConsumerBusy: the subscription takes one consumer only, and has one.
        """
        consumer_id, self._next_id = self._next_id, self._next_id + 1
        await self._dispatcher.attach(ConsumerInfo(consumer_id, joining.name, joining.priority))
        self._consumers[consumer_id] = _Consumer(listener, joining.permits)
        return consumer_id

    async def detach(self, consumer_id: int) -> frozenset[Position] | None:
        """
        Remove a consumer: nothing is delivered to it any more. Return what it had, None if it was not there.

        The dispatcher lets nothing overtake that until it is told that it is released.
        """
        if self._consumers.pop(consumer_id, None) is None:
            return None
        return await self._dispatcher.detach(consumer_id)

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let a consumer take that many more; one that has gone takes nothing."""
        if consumer_id in self._consumers:
            self._consumers[consumer_id].owed += messages

    def tell(self, what: Callable[[Listener], None]) -> None:
        """Tell every consumer something."""
        for consumer in tuple(self._consumers.values()):
            what(consumer.listener)

    def forget(self) -> None:
        """There are no consumers any more."""
        self._consumers.clear()

    async def offer(self, incarnation: int) -> bool:
        """Let the dispatcher assign what waits, and deliver it; return whether it assigned anything."""
        await self._grant()
        waiting = self._deliveries.candidates(OFFER_MAX)
        assigned = await self._dispatcher.assign(waiting) if waiting else ()
        unused: set[Position] = set()
        for one in assigned:
            taker = self._consumers.get(one.consumer_id)
            held = self._deliveries.deliver(one.position, one.consumer_id) if taker else None
            if taker is not None:
                taker.granted -= 1
            if taker is None or held is None:  # acknowledged or detached while the dispatcher decided
                unused.add(one.position)
                if taker is not None:
                    taker.owed += 1
                continue
            taker.listener.deliver(Delivery(held, held.redeliveries, incarnation, held.delivery))
        if unused:
            await self._dispatcher.released(frozenset(unused))
        return bool(assigned)

    async def _grant(self) -> None:
        for consumer_id, consumer in tuple(self._consumers.items()):
            room = self._unacknowledged_max - self._deliveries.delivered(consumer_id) - consumer.granted
            granted = min(consumer.owed, room)
            if granted > 0:
                consumer.owed -= granted
                consumer.granted += granted
                await self._dispatcher.permit(consumer_id, granted)
