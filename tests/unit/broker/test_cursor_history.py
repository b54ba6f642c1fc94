from __future__ import annotations

from collections import Counter

from txnframework.broker.batch_history import HISTORY_RANGES_MAX, replayed_from, with_processed
from txnframework.model import Position, ProcessedRange
from txnframework.model.records import SubscriptionRecord


def _range(batch: int, query: str = "q", end: int = 1) -> ProcessedRange:
    return ProcessedRange(query, batch, Position(1, 0), Position(1, end), 1)


def _added(record: SubscriptionRecord, *ranges: ProcessedRange) -> SubscriptionRecord:
    for one in ranges:
        record = with_processed(record, "s", one) or record
    return record


def test_the_last_batches_are_remembered() -> None:
    """The latest batches are kept as long as they have few ranges; several segments of one batch are one batch."""
    record = _added(SubscriptionRecord(), *(_range(batch) for batch in range(HISTORY_RANGES_MAX + 5)))
    last = with_processed(record, "other", _range(HISTORY_RANGES_MAX + 4))
    assert last is not None
    assert [one.batch for one in last.history] == [*range(6, HISTORY_RANGES_MAX + 5), HISTORY_RANGES_MAX + 4]


def test_two_batches_of_very_many_segments_are_remembered_whole() -> None:
    """Two batches are always kept for a replay; a third one is dropped."""
    record = SubscriptionRecord()
    for batch in range(3):
        for segment in range(HISTORY_RANGES_MAX):
            record = with_processed(record, str(segment), _range(batch)) or record
    assert Counter(one.batch for one in record.history) == {1: HISTORY_RANGES_MAX, 2: HISTORY_RANGES_MAX}


def test_repeating_changes_nothing() -> None:
    """Settling again writes nothing, also for a batch that was dropped."""
    record = _added(SubscriptionRecord(), *(_range(batch) for batch in range(HISTORY_RANGES_MAX + 5)))
    assert with_processed(record, "s", _range(HISTORY_RANGES_MAX)) is None
    assert with_processed(record, "s", _range(0)) is None


def test_a_newer_query_outlives_an_older_one() -> None:
    """Batch numbers are comparable within one query only."""
    record = _added(SubscriptionRecord(), *(_range(1_000 + batch) for batch in range(HISTORY_RANGES_MAX)))
    record = _added(record, _range(0, "newer"))
    assert (record.history[-1].query, record.history[-1].batch) == ("newer", 0)
    assert len(record.history) == HISTORY_RANGES_MAX


def test_a_batch_that_was_planned_anew_replaces_what_it_was() -> None:
    """There is one range for each batch and segment."""
    record = _added(SubscriptionRecord(), _range(1), _range(1, end=9))
    assert [(one.batch, one.end) for one in record.history] == [(1, "1:9")]


def test_what_the_last_two_batches_consumed_may_be_replayed() -> None:
    """The pipeline may not have recorded the last acknowledged batch, so the last two batches can be replayed."""
    record = SubscriptionRecord()
    assert replayed_from(record, "s") is None
    for batch in range(3):
        consumed = ProcessedRange("q", batch, Position(1, batch), Position(1, batch + 1), 1)
        record = with_processed(record, "s", consumed) or record
    assert replayed_from(record, "s") == Position(1, 1)
    record = with_processed(record, "other", ProcessedRange("q", 3, Position(5, 0), Position(5, 4), 1)) or record
    assert replayed_from(record, "s") == Position(1, 2)
    record = with_processed(record, "other", ProcessedRange("newer", 0, Position(5, 4), Position(5, 9), 2)) or record
    assert replayed_from(record, "s") is None
    assert replayed_from(record, "other") == Position(5, 0)
