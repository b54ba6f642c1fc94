"""On which terms a consumer takes part in a subscription."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.model.dispatching import Ordering, SubscriptionType


@dataclass(frozen=True, slots=True)
class Terms:
    """
    The subscription and its type, the consumer's own name, and what it asks for.

    ``priority``: lower numbers come first. ``stand_by``: wait where somebody else dispatches, instead of raising.
    ``retakes``: after a lease was lost, try to hold it again, and wait where somebody else does, instead of raising.
    ``named``: the caller chose the name, and an earlier consumer of it in another process is replaced.
    """

    subscription: str
    type: SubscriptionType
    name: str
    priority: int = 0
    stand_by: bool = False
    retakes: bool = True
    named: bool = False

    @property
    def follows_order(self) -> bool:
        """Whether what a segment became is received after the segment."""
        return self.type.ordering is not Ordering.NONE

    @property
    def acknowledges_cumulatively(self) -> bool:
        """Whether everything before a message of a segment was received by this consumer or those before it."""
        return self.type.ordering is Ordering.SEGMENT
