"""The history of a subscription: the last batches of a pipeline that acknowledged messages; pure."""

from __future__ import annotations

from collections import Counter

import msgspec

from txnframework.model.acks import ProcessedRange
from txnframework.model.bounds import count_newest
from txnframework.model.positions import Position
from txnframework.model.records import HistoryDocument, SubscriptionRecord

HISTORY_RANGES_MAX = 64
"""
The most ranges of whole batches that the history of a subscription holds, if it holds more than the last batches.

A batch has a range for each segment, and each settlement writes the record.
"""
REPLAYED_BATCHES = 2
"""The number of last batches whose messages are kept, and which the history always holds."""


def with_processed(record: SubscriptionRecord, segment: str, processed: ProcessedRange) -> SubscriptionRecord | None:
    """
    Return the record with ``processed`` of ``segment`` in its history, without the oldest batches; None: unchanged.
    """
    entry = HistoryDocument(
        segment=segment,
        query=processed.query,
        batch=processed.batch,
        start=str(processed.start),
        end=str(processed.end),
    )
    if entry in record.history:
        return None
    # A batch that was planned again replaces its earlier range on the same segment.
    others = [old for old in record.history if not (_same_batch(old, entry) and old.segment == segment)]
    history = [*others, entry]
    # Sorted by query in order of appearance, then by batch. So a batch that is settled again later does not count as
    # new.
    queries = list(dict.fromkeys(old.query for old in history))
    ranges = Counter((queries.index(old.query), old.batch) for old in history)
    batches = sorted(ranges)
    batches = batches[-count_newest([ranges[one] for one in batches], HISTORY_RANGES_MAX, REPLAYED_BATCHES) :]
    kept = [old for old in history if (queries.index(old.query), old.batch) in batches]
    return None if kept == record.history else msgspec.structs.replace(record, history=kept)


def replayed_from(record: SubscriptionRecord, segment: str) -> Position | None:
    """
    Return the position of a segment after which a restarted pipeline may read again; None: nowhere.

    This is where the last batches begin: a batch may be acknowledged although the pipeline has not recorded it.
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
