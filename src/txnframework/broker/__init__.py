"""
The embeddable host: topics, segments, subscriptions and cursors on top of the roles, never of an implementation.

``open_host`` opens what a configuration names. A host may live in any process that reaches the stores; what several
of them do at the same time is decided by compare-and-set in the metadata store.
"""

from __future__ import annotations

from txnframework.broker._cursors import StoredCursor
from txnframework.broker._host import Host, open_host
from txnframework.broker._segments import OpenSegment, SegmentSubscription, dispatching_lease
from txnframework.broker._topics import Start, Topics, segment_of

__all__ = [
    "Host",
    "OpenSegment",
    "SegmentSubscription",
    "Start",
    "StoredCursor",
    "Topics",
    "dispatching_lease",
    "open_host",
    "segment_of",
]
