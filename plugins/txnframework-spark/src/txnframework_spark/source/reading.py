"""An executor's part of reading: ledger entries to Arrow, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from txnframework.interfaces import IManagedLedger
from txnframework.model.ledger import LedgerEntry
from txnframework.model.names import SegmentName
from txnframework.model.positions import EntryRange, Limit
from txnframework_spark import process
from txnframework_spark.microbatch.pause import PLANNED, REGISTERED, Pauses
from txnframework_spark.microbatch.registration import register
from txnframework_spark.microbatch.tasks import TaskFacts
from txnframework_spark.source.columns import EntryArrays
from txnframework_spark.source.partition import SegmentPartition

PAGE: Final = Limit(1_000)
"""Entries held in memory at a time, by count and bytes."""


def read_partition(partition: SegmentPartition, task: TaskFacts, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Register what the batch reads, then yield the partition's messages in order.

    The registration comes before the first row: a commit that finds none would take the batch for one without
    acknowledgments.
    """
    host = process.host(partition.stores)
    pauses = Pauses.from_environment()
    doing = {
        "query": task.batch.query,
        "run": task.batch.run,
        "segment": partition.segment,
        "after": partition.after,
        "upto": partition.upto,
    }
    pauses.reach(PLANNED, task.batch.batch, **doing)
    if partition.reading is not None:
        process.run(register(host.metadata, task.batch, partition.reading))
    pauses.reach(REGISTERED, task.batch.batch, **doing)
    ledger: IManagedLedger = process.run(host.ledgers.open(partition.segment))
    try:
        yield from _batches(ledger, partition, schema)
    finally:
        process.run(ledger.close())


def _batches(ledger: IManagedLedger, partition: SegmentPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    after = partition.after
    while after < partition.upto:
        page: tuple[LedgerEntry, ...] = process.run(ledger.read(EntryRange(after, partition.upto), PAGE))
        if not page:
            return
        after = page[-1].position
        yield from page_batches(page, partition, schema)


def page_batches(page: Sequence[LedgerEntry], partition: SegmentPartition, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return what counts of a page: not what was aborted, nor what the subscription had acknowledged one by one."""
    segment = SegmentName.parse(partition.segment)
    partial = dict(partition.partial)
    found: list[pa.RecordBatch] = []
    for entry in page:
        if any(first <= entry.position <= last for first, last in partition.deleted):
            continue
        arrays = EntryArrays(entry.data, entry.position, segment)
        if arrays.view.branch is not None and arrays.view.branch in partition.aborted:
            continue
        done = partial.get(entry.position)
        kept = None if done is None else [index for index in range(arrays.view.count) if index not in done]
        found.append(arrays.batch(schema, kept))
    # Spark pays for each batch, and entries are often small.
    batches: list[pa.RecordBatch] = pa.Table.from_batches(found, schema).combine_chunks().to_batches()
    return batches
