"""A page of entries, less what does not count."""

from __future__ import annotations

import pyarrow as pa

from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.ids import Branch, TxnID
from txnframework.model.ledger import LedgerEntry
from txnframework.model.positions import EARLIEST, Position
from txnframework_spark.options.stores import StoreOptions
from txnframework_spark.source.partition import SegmentPartition
from txnframework_spark.source.reading import page_batches

SCHEMA = pa.schema([("value", pa.binary())])
SEGMENT = "segment://public/default/in/0000-ffff-0"
KEPT, ABORTED = Branch(TxnID(0, 1), 5), Branch(TxnID(0, 1), 6)


def page(*branches: Branch | None) -> list[LedgerEntry]:
    """Return an entry of two messages for each branch, valued by entry and index."""
    found = []
    for number, branch in enumerate(branches):
        messages = [EntryMessage(None, f"{number}.{index}".encode(), (), index, 0) for index in range(2)]
        found.append(LedgerEntry(Position(0, number), encode_entry(messages, "p", branch)))
    return found


def values(entries: list[LedgerEntry], **left_out: object) -> list[str]:
    partition = SegmentPartition(StoreOptions(), SEGMENT, EARLIEST, Position(0, 9), **left_out)  # type: ignore[arg-type]
    batches = page_batches(entries, partition, SCHEMA)
    assert len(batches) <= 1
    return [row["value"].decode() for batch in batches for row in batch.to_pylist()]


def test_aborted_branches_are_left_out_and_others_of_the_same_transaction_are_not() -> None:
    assert values(page(None, ABORTED, KEPT), aborted=frozenset({ABORTED})) == ["0.0", "0.1", "2.0", "2.1"]


def test_what_was_acknowledged_one_by_one_is_left_out() -> None:
    deleted = ((Position(0, 1), Position(0, 2)),)
    partial = ((Position(0, 3), frozenset({0})),)
    assert values(page(None, None, None, None), deleted=deleted, partial=partial) == ["0.0", "0.1", "3.1"]


def test_a_page_of_nothing_that_counts_is_no_batch() -> None:
    assert values(page(ABORTED), aborted=frozenset({ABORTED})) == []
