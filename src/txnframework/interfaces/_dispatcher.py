"""IDispatcher: who gets which message of one subscription."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.model.dispatching import Assignment, Candidate, ConsumerInfo
from txnframework.model.positions import Position


class IDispatcher(Interface):
    """
    A decision, no I/O: the broker reads, waits for announcements and delivers; this only assigns.

    How it is used: consumers attach and grant permits; the broker offers what waits, in reading order, and delivers as
    assigned; what is acknowledged or given back is released.
    """

    subscription_type: str = Attribute("'exclusive', 'failover', 'shared', 'key_shared'.")

    async def attach(consumer: ConsumerInfo) -> None:
        """
        Add a consumer.

        :raises ConsumerBusy: the type allows one only, and names the one that is there.
        """

    async def detach(consumer_id: int) -> frozenset[Position]:
        """Remove it; return what it held, for redelivery; an unknown one holds nothing."""

    async def permit(consumer_id: int, messages: int) -> None:
        """Let it take that many more."""

    async def assign(waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign in reading order as far as permits and ordering allow; what is not assigned is offered again."""

    async def released(positions: frozenset[Position]) -> None:
        """These were acknowledged or given back; whatever they blocked is free."""
