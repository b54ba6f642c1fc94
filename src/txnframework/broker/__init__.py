"""
The embeddable host: topics, segments, subscriptions and cursors on top of the roles, never of an implementation.

``open_host`` opens what a configuration names. A host may live in any process that reaches the stores; what several
of them do at the same time is decided by compare-and-set in the metadata store.
"""

from __future__ import annotations

from txnframework.broker._compaction.attempts import Attempt, Kept
from txnframework.broker._compaction.compactors import Compactor, DecidedMessage, LatestByKey
from txnframework.broker._compaction.copying import EVERYTHING, Copied, CopyPlan, CopyRange, copies
from txnframework.broker._compaction.decided import CommitTimes, Order
from txnframework.broker._compaction.writing import PartWriter
from txnframework.broker._cursors.stored import StoredCursor
from txnframework.broker._dispatch.acknowledging import FINISHED_ELSEWHERE, GIVEN_UP
from txnframework.broker._dispatch.deliveries import HeldMessage
from txnframework.broker._dispatch.dispatches import Attached, Dispatches, Place
from txnframework.broker._dispatch.dispatching import SegmentDispatch
from txnframework.broker._dispatch.open_acks import acks_of, cumulative_ack
from txnframework.broker._dispatch.parts import Delivery, Joining, Listener
from txnframework.broker._host import Host, open_host
from txnframework.broker._inspecting.ack_status import ack_status
from txnframework.broker._inspecting.backlog import Lag, SegmentLag
from txnframework.broker._inspecting.hanging import HangingTransaction
from txnframework.broker._inspecting.standing import FamilyStanding, StandingReport, TopicStanding
from txnframework.broker._measuring.passing import Passing
from txnframework.broker._restoring.reconciling import Counts
from txnframework.broker._restoring.restoring import Restored, RestoreReport, RestoreRequest, restore
from txnframework.broker._serving.domains import DomainPlugins, NoPlugins, plugins_of
from txnframework.broker._serving.foundation import Foundation
from txnframework.broker._serving.segments import OpenSegment, SegmentSubscription, dispatching_lease
from txnframework.broker._topics.subscribing import Start
from txnframework.broker._topics.topics import Topics
from txnframework.runtime.tasks import RetryingTasks, first_completed

__all__ = [
    "EVERYTHING",
    "FINISHED_ELSEWHERE",
    "GIVEN_UP",
    "Attached",
    "Attempt",
    "CommitTimes",
    "Compactor",
    "Copied",
    "CopyPlan",
    "CopyRange",
    "Counts",
    "DecidedMessage",
    "Delivery",
    "Dispatches",
    "DomainPlugins",
    "FamilyStanding",
    "Foundation",
    "HangingTransaction",
    "HeldMessage",
    "Host",
    "Joining",
    "Kept",
    "Lag",
    "LatestByKey",
    "Listener",
    "NoPlugins",
    "OpenSegment",
    "Order",
    "PartWriter",
    "Passing",
    "Place",
    "RestoreReport",
    "RestoreRequest",
    "Restored",
    "RetryingTasks",
    "SegmentDispatch",
    "SegmentLag",
    "SegmentSubscription",
    "StandingReport",
    "Start",
    "StoredCursor",
    "TopicStanding",
    "Topics",
    "ack_status",
    "acks_of",
    "copies",
    "cumulative_ack",
    "dispatching_lease",
    "first_completed",
    "open_host",
    "plugins_of",
    "restore",
]
