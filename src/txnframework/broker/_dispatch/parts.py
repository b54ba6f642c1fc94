"""What a dispatch is made of, and what it tells its consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnframework.broker._dispatch.deliveries import HeldMessage
from txnframework.broker._serving.segments import OpenSegment, SegmentSubscription
from txnframework.broker.coordinators.coordinators import KnownOutcomes
from txnframework.config import SubscriptionsSection
from txnframework.environment import Environment
from txnframework.interfaces import IDispatcher, IMetadataStore, ITransactionCoordinator


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    A message on its way to a consumer.

    ``incarnation`` is the cursor's under which it was read; ``number`` is for ``SegmentDispatch.hand_out``; ``tenure``
    is that of the dispatch that delivers it.
    """

    held: HeldMessage
    redelivery_count: int
    incarnation: int
    number: int
    tenure: object


@dataclass(frozen=True, slots=True)
class Joining:
    """
    A consumer that wants to attach; ``permits``: how many messages it takes to begin with.

    ``named``: the caller chose its name. ``replaces``: it takes the place of an earlier consumer of this name, whose
    process may be dead, without waiting for the end of that one's session.
    """

    name: str
    permits: int
    priority: int = 0
    named: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Listener:
    """
    What a consumer is told, at once and without waiting for it.

    ``deliver``: here is a message. ``reset``: what you were given is void, someone sought. ``progressed``: look at
    ``drained_by`` and ``done`` again. ``ended``: nothing more comes, for this reason.
    """

    deliver: Callable[[Delivery], None]
    reset: Callable[[], None]
    progressed: Callable[[], None]
    ended: Callable[[Exception], None]


@dataclass(frozen=True, slots=True)
class DispatchParts:
    """What a dispatch is made of; without a ``coordinator`` there are no transactions."""

    segment: OpenSegment
    subscription: SegmentSubscription
    subscription_type: str
    dispatcher: IDispatcher
    coordinator: ITransactionCoordinator | None
    store: IMetadataStore
    environment: Environment
    bounds: SubscriptionsSection
    outcomes: KnownOutcomes
