"""
The embeddable host: topics, segments, subscriptions and cursors on top of the roles, never of an implementation.

``open_host`` opens what a configuration names. A host may live in any process that reaches the stores; what several
of them do at the same time is decided by compare-and-set in the metadata store.
"""

from __future__ import annotations

from txnframework.broker._ack_status import ack_status
from txnframework.broker._backlog import Lag, SegmentLag
from txnframework.broker._compactors import Compactor, DecidedMessage, LatestByKey
from txnframework.broker._cursors import StoredCursor
from txnframework.broker._decided import Order
from txnframework.broker._deliveries import HeldMessage
from txnframework.broker._dispatch_parts import Delivery, Joining, Listener
from txnframework.broker._dispatches import Attached, Dispatches, Place
from txnframework.broker._dispatching import SegmentDispatch
from txnframework.broker._guarded import GuardedTasks
from txnframework.broker._host import Host, open_host
from txnframework.broker._open_acks import acks_of
from txnframework.broker._reconciling import Counts
from txnframework.broker._restoring import Restored, RestoreReport, RestoreRequest, restore
from txnframework.broker._segments import OpenSegment, SegmentSubscription, dispatching_lease
from txnframework.broker._serving import DomainPlugins, NoPlugins, plugins_of
from txnframework.broker._subscribing import Start
from txnframework.broker._topics import Topics
from txnframework.broker._waiting import first_of

__all__ = [
    "Attached",
    "Compactor",
    "Counts",
    "DecidedMessage",
    "Delivery",
    "Dispatches",
    "DomainPlugins",
    "GuardedTasks",
    "HeldMessage",
    "Host",
    "Joining",
    "Lag",
    "LatestByKey",
    "Listener",
    "NoPlugins",
    "OpenSegment",
    "Order",
    "Place",
    "RestoreReport",
    "RestoreRequest",
    "Restored",
    "SegmentDispatch",
    "SegmentLag",
    "SegmentSubscription",
    "Start",
    "StoredCursor",
    "Topics",
    "ack_status",
    "acks_of",
    "dispatching_lease",
    "first_of",
    "open_host",
    "plugins_of",
    "restore",
]
