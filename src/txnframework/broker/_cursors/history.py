"""Which batches acknowledged which ranges: the bounded memory that a replayed batch finds its ranges in."""

from __future__ import annotations

import msgspec

from txnframework.model.acks import ProcessedRange
from txnframework.model.positions import Position
from txnframework.model.records import HistoryDocument, SubscriptionRecord

HISTORY_BATCHES_MAX = 100
"""How many batches a subscription remembers."""
REPLAYED_BATCHES = 2
"""Of how many of them the messages are kept."""


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


def replayed_from(record: SubscriptionRecord, segment: str) -> Position | None:
    """
    Return after which position of a segment a pipeline that starts again may read anew; None: nowhere.

    That is where the last batches begin: a batch may be acknowledged without the pipeline having noted it.
    """
    queries = list(dict.fromkeys(old.query for old in record.history))
    last = sorted({(queries.index(old.query), old.batch) for old in record.history})[-REPLAYED_BATCHES:]
    starts = [
        Position.parse(old.start)
        for old in record.history
        if old.segment == segment and (queries.index(old.query), old.batch) in last
    ]
    return min(starts, default=None)


def _same_batch(one: HistoryDocument, other: HistoryDocument) -> bool:
    return one.query == other.query and one.batch == other.batch
