"""Names of the secondary indexes, and the components of their keys (see ``model.index_keys``)."""

from __future__ import annotations

from txnframework.model import index_keys
from txnframework.model.metadata import IndexEntry, IndexRange
from txnframework.model.positions import Position
from txnframework.model.records import AbortRecord, SubscriptionRecord

TXN_BY_DEADLINE = "txn-by-deadline"
"""Open transactions: (``timeout_ms``, transaction id)."""

TXN_BY_FINAL_STATE = "txn-by-final-state"
"""Ended transactions: (state, ``finalized_ms``, transaction id)."""

WRITES_BY_SEGMENT = "writes-by-segment"
"""Write operations: (segment, transaction id)."""

ABORTS_BY_BOUND = "aborts-by-bound"
"""Abort records: (segment, ledger and entry of their bound), see ``abort_bound``."""

ACKS_BY_SEGMENT_SUBSCRIPTION = "acks-by-segment-subscription"
"""Acknowledgment operations: (segment, subscription)."""

REGISTRATIONS_BY_BATCH = "registrations-by-batch"
"""Subscription records: (query, run, batch), one entry for each registration in the record."""


def subscription_indexes(record: SubscriptionRecord) -> tuple[IndexEntry, ...]:
    """Return the index entries of a subscription record; they are written together with the record."""
    batches = {(found.query, found.run, found.batch) for found in record.registrations}
    return tuple(IndexEntry(REGISTRATIONS_BY_BATCH, index_keys.encode(*batch)) for batch in sorted(batches))


def abort_bound(ledger_id: int, record: AbortRecord) -> Position:
    """Return the furthest position that the segment has reached, according to an abort record in one of its ledgers."""
    return max(Position.parse(record.after), Position(ledger_id, -1))


def abort_indexes(segment: str, ledger_id: int, record: AbortRecord) -> tuple[IndexEntry, ...]:
    """Return the index entry of an abort record; it is written together with the record."""
    return (IndexEntry(ABORTS_BY_BOUND, _bound_key(segment, abort_bound(ledger_id, record))),)


def aborts_beyond(segment: str, end: Position) -> IndexRange:
    """Return the range of the abort records of a segment whose bound is beyond ``end``."""
    whole = index_keys.prefix_range(ABORTS_BY_BOUND, segment)
    return IndexRange(ABORTS_BY_BOUND, _bound_key(segment, Position(end.ledger_id, end.entry_id + 1)), whole.stop)


def _bound_key(segment: str, bound: Position) -> bytes:
    # An entry id may be -1, the position before the first entry; a component of a key may not be negative.
    return index_keys.encode(segment, bound.ledger_id, bound.entry_id + 1)
