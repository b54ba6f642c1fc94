"""Names of the secondary indexes, and what their keys are made of (see ``model.index_keys``)."""

from __future__ import annotations

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
