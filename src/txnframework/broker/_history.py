"""Which batches acknowledged which ranges: the bounded memory that a replayed batch finds its ranges in."""

from __future__ import annotations

import msgspec

from txnframework.model.acks import ProcessedRange
from txnframework.model.records import HistoryDocument, SubscriptionRecord

HISTORY_BATCHES_MAX = 100
"""How many batches a subscription remembers."""


def with_processed(record: SubscriptionRecord, segment: str, processed: ProcessedRange) -> SubscriptionRecord | None:
    """Return the record that remembers ``processed`` of ``segment``, None if it does; the oldest batches go."""
    entry = HistoryDocument(
        segment=segment,
        query=processed.query,
        batch=processed.batch,
        start=str(processed.start),
        end=str(processed.end),
    )
    if entry in record.history:
        return None
    # A batch that was planned anew replaces what it was before, on the same segment.
    others = [old for old in record.history if not (_same_batch(old, entry) and old.segment == segment)]
    history = [*others, entry]
    # By query in the order they came, then by batch: a batch that is settled once more, late, does not count as new.
    queries = list(dict.fromkeys(old.query for old in history))
    batches = sorted({(queries.index(old.query), old.batch) for old in history})[-HISTORY_BATCHES_MAX:]
    kept = [old for old in history if (queries.index(old.query), old.batch) in set(batches)]
    return None if kept == record.history else msgspec.structs.replace(record, history=kept)


def _same_batch(one: HistoryDocument, other: HistoryDocument) -> bool:
    return one.query == other.query and one.batch == other.batch
