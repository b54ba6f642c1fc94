"""
Embeddable host: topics, segments, subscriptions and cursors on top of the roles, independent of any implementation.

``open_host`` opens the plugins that a configuration names. A host may run in any process that reaches the stores.
Compare-and-set in the metadata store decides between concurrent hosts.
"""

from __future__ import annotations

from txnframework.broker.backlog import Lag, SegmentLag
from txnframework.broker.compaction.attempts import Attempt, CompactionResult, PartWriter
from txnframework.broker.compaction.compactors import Compactor, DecidedMessage, LatestByKey
from txnframework.broker.compaction.copies import EVERYTHING, Copied, CopyPlan, CopyRange, copies
from txnframework.broker.compaction.messages import CommitTimes, Order
from txnframework.broker.coordination import held_leases, holder_of, wait_until_free
from txnframework.broker.cursors import StoredCursor
from txnframework.broker.dispatch.acknowledgments import FINISHED_ELSEWHERE, NOT_UNDER_LEASE, SizedPosition
from txnframework.broker.dispatch.acks_in_progress import AckInProgress
from txnframework.broker.dispatch.attachments import Attachment, SubscriptionRef
from txnframework.broker.dispatch.completion import finished_at
from txnframework.broker.dispatch.consumers import AttachRequest, Listener
from txnframework.broker.dispatch.deliveries import HeldMessage
from txnframework.broker.dispatch.dispatches import Dispatches
from txnframework.broker.dispatch.durable_counts import DurableCounts, NumberedDelivery
from txnframework.broker.dispatch.open_acks import acks_of, cumulative_ack
from txnframework.broker.dispatch.segment_dispatch import SegmentDispatch
from txnframework.broker.dispatch.subscription_shares import SubscriptionShare
from txnframework.broker.domains import DomainPlugins, NoPlugins, plugins_of
from txnframework.broker.events import Event, log_event
from txnframework.broker.host import Host, open_host
from txnframework.broker.inspection import (
    HeldLease,
    SegmentDescription,
    SubscriptionDescription,
    SubscriptionPosition,
    TopicDescription,
)
from txnframework.broker.joint_steps import JOINT_REFUSALS, StepWithRowsRefused, WaitingTransaction
from txnframework.broker.lease_names import dispatching_lease, dispatching_leases
from txnframework.broker.observers import Superseded, observing
from txnframework.broker.probes import StoreProbe, probe_stores
from txnframework.broker.restore.reconciliation import Counts
from txnframework.broker.restore.restoration import Restored, RestoreReport, RestoreRequest, restore
from txnframework.broker.segment_ends import NamedPosition, positions_beyond_end
from txnframework.broker.segments import OpenSegment, SegmentSubscription
from txnframework.broker.status import (
    FamilyStatus,
    HangingTransaction,
    SegmentStatus,
    StatusReport,
    SubscriptionStatus,
    TopicStatus,
    ack_status,
)
from txnframework.broker.store_copy.audit import Audit, AuditReport, ComparedItem, CopyProgress
from txnframework.broker.store_copy.closed_sources import reopen
from txnframework.broker.store_copy.copier import audit_stores, copy_stores
from txnframework.broker.store_copy.digests import Digest, HashSum
from txnframework.broker.store_copy.request import CopyReport, CopyRequest
from txnframework.broker.stores import HostContext
from txnframework.broker.topics.migration import MigrationFacts
from txnframework.broker.topics.subscriptions import Start
from txnframework.broker.topics.topics import Topics
from txnframework.broker.undecided_messages import UndecidedMessages, undecided_after
from txnframework.runtime.proxy import ForwardingProxy
from txnframework.runtime.tasks import RetryingTasks, first_completed

__all__ = [
    "EVERYTHING",
    "FINISHED_ELSEWHERE",
    "JOINT_REFUSALS",
    "NOT_UNDER_LEASE",
    "AckInProgress",
    "AttachRequest",
    "Attachment",
    "Attempt",
    "Audit",
    "AuditReport",
    "CommitTimes",
    "CompactionResult",
    "Compactor",
    "ComparedItem",
    "Copied",
    "CopyPlan",
    "CopyProgress",
    "CopyRange",
    "CopyReport",
    "CopyRequest",
    "Counts",
    "DecidedMessage",
    "Digest",
    "Dispatches",
    "DomainPlugins",
    "DurableCounts",
    "Event",
    "FamilyStatus",
    "ForwardingProxy",
    "HangingTransaction",
    "HashSum",
    "HeldLease",
    "HeldMessage",
    "Host",
    "HostContext",
    "Lag",
    "LatestByKey",
    "Listener",
    "MigrationFacts",
    "NamedPosition",
    "NoPlugins",
    "NumberedDelivery",
    "OpenSegment",
    "Order",
    "PartWriter",
    "RestoreReport",
    "RestoreRequest",
    "Restored",
    "RetryingTasks",
    "SegmentDescription",
    "SegmentDispatch",
    "SegmentLag",
    "SegmentStatus",
    "SegmentSubscription",
    "SizedPosition",
    "Start",
    "StatusReport",
    "StepWithRowsRefused",
    "StoreProbe",
    "StoredCursor",
    "SubscriptionDescription",
    "SubscriptionPosition",
    "SubscriptionRef",
    "SubscriptionShare",
    "SubscriptionStatus",
    "Superseded",
    "TopicDescription",
    "TopicStatus",
    "Topics",
    "UndecidedMessages",
    "WaitingTransaction",
    "ack_status",
    "acks_of",
    "audit_stores",
    "copies",
    "copy_stores",
    "cumulative_ack",
    "dispatching_lease",
    "dispatching_leases",
    "finished_at",
    "first_completed",
    "held_leases",
    "holder_of",
    "log_event",
    "observing",
    "open_host",
    "plugins_of",
    "positions_beyond_end",
    "probe_stores",
    "reopen",
    "restore",
    "undecided_after",
    "wait_until_free",
]
