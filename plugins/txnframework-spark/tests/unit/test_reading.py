"""A page of entries, less what does not count."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from txnframework.errors import EntryTrimmed
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.ids import Branch, TxnID
from txnframework.model.ledger import LedgerEntry
from txnframework.model.positions import EARLIEST, EntryRange, Limit, Position
from txnframework_spark.errors import DataLost
from txnframework_spark.options.parser import StoreOptions
from txnframework_spark.source.partitions import SegmentPartition
from txnframework_spark.source.reader import LARGE_ENTRY_ROWS, PageReader, page_batches

SCHEMA = pa.schema([("value", pa.binary())])
TOPIC, SEGMENT = "topic://public/default/in", "segment://public/default/in/0000-ffff-0"
KEPT, ABORTED = Branch(TxnID(0, 1), 5), Branch(TxnID(0, 1), 6)


def page(*branches: Branch | None) -> list[LedgerEntry]:
    """Return an entry of two messages for each branch, valued by entry and index."""
    found = []
    for number, branch in enumerate(branches):
        messages = [EntryMessage(None, f"{number}.{index}".encode(), (), index, 0) for index in range(2)]
        found.append(LedgerEntry(Position(0, number), encode_entry(messages, "p", branch)))
    return found


def values(entries: list[LedgerEntry], **left_out: object) -> list[str]:
    partition = SegmentPartition(StoreOptions(), TOPIC, SEGMENT, EARLIEST, Position(0, 9), **left_out)  # type: ignore[arg-type]
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


def test_large_entries_are_batches_of_their_own_and_small_ones_are_put_together_in_order() -> None:
    def entry(number: int, count: int) -> LedgerEntry:
        messages = [EntryMessage(None, b"%d" % number, (), index, 0) for index in range(count)]
        return LedgerEntry(Position(0, number), encode_entry(messages, "p", None))

    counts = [2, 3, LARGE_ENTRY_ROWS, 1, LARGE_ENTRY_ROWS + 1, LARGE_ENTRY_ROWS, 4]
    partition = SegmentPartition(StoreOptions(), TOPIC, SEGMENT, EARLIEST, Position(0, 9))
    batches = page_batches([entry(number, count) for number, count in enumerate(counts)], partition, SCHEMA)
    assert [batch.num_rows for batch in batches] == [5, LARGE_ENTRY_ROWS, 1, LARGE_ENTRY_ROWS + 1, LARGE_ENTRY_ROWS, 4]
    found = [value for batch in batches for value in batch.column(0).to_pylist()]
    assert found == [b"%d" % number for number, count in enumerate(counts) for _ in range(count)]


class Entries:
    """A ledger of entries 0:0 to 0:9, two a page, whose first ones are trimmed; it counts what is read."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.reads = 0
        self.is_closed = False

    async def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        self.reads += 1
        after = entries.after.entry_id
        if after + 1 < self.first:
            raise EntryTrimmed("in", entries.after, Position(0, self.first))
        last = min(after + 2, entries.upto.entry_id)
        return tuple(LedgerEntry(Position(0, number), b"") for number in range(after + 1, last + 1))

    async def close(self) -> None:
        self.is_closed = True


def pages_of(ledger: Any, **given: Any) -> list[list[int]]:
    async def run() -> list[list[int]]:
        pages = PageReader(ledger, SegmentPartition(StoreOptions(), TOPIC, SEGMENT, EARLIEST, Position(0, 4), **given))
        found: list[list[int]] = []
        while page := await pages.following():
            found.append([entry.position.entry_id for entry in page])
            await asyncio.sleep(0)
            # This page, and the one that is read while it is converted.
            assert ledger.reads <= len(found) + 1
        await pages.close()
        assert ledger.is_closed
        return found

    return asyncio.run(run())


def test_one_page_is_read_ahead_and_no_more() -> None:
    assert pages_of(Entries()) == [[0, 1], [2, 3], [4]]


def test_what_was_trimmed_since_the_planning_is_lost_or_left_out() -> None:
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        pages_of(Entries(first=3))
    lenient = Entries(first=3)
    lenient.reads = -1
    assert pages_of(lenient, skips_trimmed=True) == [[3, 4]]
    assert pages_of(Entries(first=9), skips_trimmed=True) == []
