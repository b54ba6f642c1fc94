"""The parts of a dispatch, and the callbacks to its consumers."""

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
    A message that is delivered to a consumer.

    ``incarnation`` is that of the cursor under which the message was read. ``number`` is the argument for
    ``SegmentDispatch.hand_out``. ``tenure`` is that of the dispatch that delivers it.
    """

    held: HeldMessage
    redelivery_count: int
    incarnation: int
    number: int
    tenure: object


@dataclass(frozen=True, slots=True)
class Joining:
    """
    A consumer that attaches; ``permits`` is the number of messages that it accepts at first.

    ``named``: the caller chose the name. ``replaces``: the consumer takes the lease from an earlier consumer of this
    name, whose process may be dead, without waiting for the end of its session.
    """

    name: str
    permits: int
    priority: int = 0
    named: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Listener:
    """
    The callbacks of a consumer; they are called synchronously.

    * ``deliver``: a message was delivered.
    * ``reset``: the subscription was moved, and all deliveries are void.
    * ``progressed``: ``drained_by`` and ``done`` may have changed.
    * ``ended``: no more messages will be delivered, for this reason.
    """

    deliver: Callable[[Delivery], None]
    reset: Callable[[], None]
    progressed: Callable[[], None]
    ended: Callable[[Exception], None]


@dataclass(frozen=True, slots=True)
class DispatchParts:
    """The parts of a dispatch; without a ``coordinator`` there are no transactions."""

    segment: OpenSegment
    subscription: SegmentSubscription
    subscription_type: str
    dispatcher: IDispatcher
    coordinator: ITransactionCoordinator | None
    store: IMetadataStore
    environment: Environment
    bounds: SubscriptionsSection
    outcomes: KnownOutcomes
