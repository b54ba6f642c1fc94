"""What a caller chooses when a consumer is opened."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.model.dispatch import Ordering, SubscriptionType


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """
    The subscription and its type, the consumer's name, and the caller's options.

    * ``priority``: lower numbers come first.
    * ``stand_by``: wait while another process dispatches, instead of raising.
    * ``retakes``: after a lost lease, take the lease again or wait for it, instead of raising.
    * ``counts_durably``: deliveries are counted in the store too, because messages may become dead letters.
    * ``named``: the caller chose the name; this consumer replaces an earlier one of that name in another process.
    * ``shares``: this process and others divide the segments among them.
    """

    subscription: str
    type: SubscriptionType
    name: str
    priority: int = 0
    stand_by: bool = False
    retakes: bool = True
    named: bool = False
    counts_durably: bool = False
    shares: bool = False

    @property
    def follows_order(self) -> bool:
        """Whether the children of a segment are received after the segment."""
        return self.type.ordering is not Ordering.NONE

    @property
    def acknowledges_cumulatively(self) -> bool:
        """Whether all messages before a message of a segment were received by this consumer or by its predecessors."""
        return self.type.ordering is Ordering.SEGMENT
