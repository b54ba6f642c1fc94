"""Names of the secondary indexes, and what their keys are made of (see ``model.index_keys``)."""

from __future__ import annotations

from txnframework.model import index_keys
from txnframework.model.metadata import IndexEntry
from txnframework.model.records import SubscriptionRecord

TXN_BY_DEADLINE = "txn-by-deadline"
"""Open transactions: (``timeout_ms``, transaction id)."""

TXN_BY_FINAL_STATE = "txn-by-final-state"
"""Ended transactions: (state, ``finalized_ms``, transaction id)."""

WRITES_BY_SEGMENT = "writes-by-segment"
"""Write operations: (segment)."""

ACKS_BY_SEGMENT_SUBSCRIPTION = "acks-by-segment-subscription"
"""Acknowledgment operations: (segment, subscription)."""

REGISTRATIONS_BY_BATCH = "registrations-by-batch"
"""Subscription records: (query, run, batch), one entry for each registration in the record."""


def subscription_indexes(record: SubscriptionRecord) -> tuple[IndexEntry, ...]:
    """Return the index entries of a subscription record; whoever writes the record writes them with it."""
    batches = {(found.query, found.run, found.batch) for found in record.registrations}
    return tuple(IndexEntry(REGISTRATIONS_BY_BATCH, index_keys.encode(*batch)) for batch in sorted(batches))
