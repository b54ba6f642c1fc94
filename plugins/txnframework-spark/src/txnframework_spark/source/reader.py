"""An executor's part of reading: ledger entries to Arrow, one page and whole columns at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txnframework.broker import Host
from txnframework.errors import CorruptEntry, EntryTrimmed
from txnframework.interfaces import IManagedLedger
from txnframework.model.entries import EntryView
from txnframework.model.entry_columns import Buffer
from txnframework.model.ledger import LedgerEntry
from txnframework.model.names import SegmentName, TopicName, parse_name, segment_id_of
from txnframework.model.positions import EntryRange, Limit, Position
from txnframework.runtime.tasks import start_task
from txnframework_spark import process
from txnframework_spark.errors import DataLost, Unsupported
from txnframework_spark.microbatch.batch import TaskAttempt
from txnframework_spark.microbatch.pause import PLANNED, REGISTERED, Pauses
from txnframework_spark.microbatch.registration import register
from txnframework_spark.process import retry_unavailable
from txnframework_spark.source.offsets import before
from txnframework_spark.source.partitions import SegmentPartition

SCHEMA: Final = (
    "key binary, value binary, topic string, segment bigint,"
    " offset struct<ledger: bigint, entry: bigint, index: int>, timestamp timestamp"
)
"""The source's columns, as a Spark schema; ``.schema(...)`` may select a subset."""

HEADERS: Final = "headers array<struct<key: string, value: binary>>"
"""The column that ``includeHeaders`` adds."""

TRANSACTION: Final = "__txn string, __producer string, __sequence bigint"
"""The columns that ``includeTransaction`` adds: the transaction id or null, the producer and its sequence number."""

HEADER_FIELDS: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
_OFFSET_FIELDS: Final = [pa.field("ledger", pa.int64()), pa.field("entry", pa.int64()), pa.field("index", pa.int32())]


def source_columns(headers: bool, transaction: bool) -> str:
    """Return the columns of a load without an explicit schema."""
    return ", ".join((SCHEMA, *((HEADERS,) if headers else ()), *((TRANSACTION,) if transaction else ())))


class EntryArrays:
    """
    One entry's messages as Arrow arrays; columns that the schema lacks are not built.

    ``segment`` is the old topic's name if it belongs to a topic that has migrated, and ``topic`` the new one.
    """

    def __init__(self, data: Buffer, position: Position, segment: SegmentName | TopicName, topic: str) -> None:
        self.view = EntryView(data, position, str(segment), checks_offsets=False)
        self._position = position
        self._segment = segment
        self._topic = topic

    def batch(self, schema: pa.Schema, kept: Sequence[int] | NDArray[np.intp] | None = None) -> pa.RecordBatch:
        """Return the columns of ``schema``; ``kept``: the indexes of the messages to return."""
        arrays = [self._checked(field) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return batch if kept is None else batch.take(pa.array(kept, pa.int64()))

    def _checked(self, field: pa.Field) -> pa.Array:
        """Return a column; CorruptEntry if its offsets point outside of its data."""
        try:
            column = self._column(field.name)
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise CorruptEntry(self._position, f"column {field.name}: {error}", str(self._segment)) from error
        return column if column.type.equals(field.type) else column.cast(field.type)

    def _column(self, name: str) -> pa.Array:
        view = self.view
        if name == "value":
            nulls = view.values_validity if view.has_nulls else None
            return _binary(view.count, view.values_offsets, view.values_data, nulls)
        if name == "key":
            if not view.has_keys:
                return pa.nulls(view.count, pa.binary())
            return _binary(view.count, view.keys_offsets, view.keys_data, view.keys_validity)
        if name == "__sequence":
            return _int64(view.count, view.sequence_ids)
        if name == "timestamp":
            return pa.array(_times_ms(view.published_ms)).cast(pa.timestamp("ms", "UTC"))
        if name == "offset":
            return self._offsets()
        if name == "headers":
            return self._headers()
        constants = {
            "topic": pa.scalar(self._topic, pa.string()),
            "segment": pa.scalar(segment_id_of(self._segment), pa.int64()),
            "__txn": pa.scalar(None if view.branch is None else str(view.branch.txn_id), pa.string()),
            "__producer": pa.scalar(view.producer, pa.string()),
        }
        if name not in constants:
            raise Unsupported(f"a txnframework source has no column {name}; it has {SCHEMA}, {HEADERS}, {TRANSACTION}")
        return pa.repeat(constants[name], view.count)

    def _offsets(self) -> pa.Array:
        count = self.view.count
        parts = [
            pa.repeat(pa.scalar(self._position.ledger_id, pa.int64()), count),
            pa.repeat(pa.scalar(self._position.entry_id, pa.int64()), count),
            pa.array(np.arange(count, dtype=np.int32)),
        ]
        return pa.StructArray.from_arrays(parts, fields=_OFFSET_FIELDS)

    def _headers(self) -> pa.Array:
        """Return the headers of each message; null for a message without headers, as in Spark's Kafka source."""
        view = self.view
        kind = pa.list_(pa.struct(HEADER_FIELDS))
        if not view.has_headers:
            return pa.nulls(view.count, kind)
        names = _binary(view.header_count, view.header_names_offsets, view.header_names_data)
        names.validate(full=True)
        values = _binary(view.header_count, view.header_values_offsets, view.header_values_data)
        pairs = pa.StructArray.from_arrays([names.cast(pa.string()), values], fields=HEADER_FIELDS)
        some = np.diff(np.frombuffer(view.headers_offsets, np.int32)) > 0
        mask = pa.py_buffer(np.packbits(some, bitorder="little"))
        return pa.Array.from_buffers(kind, view.count, [mask, pa.py_buffer(view.headers_offsets)], children=[pairs])


def _binary(count: int, offsets: memoryview, data: memoryview, validity: memoryview | None = None) -> pa.Array:
    mask = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(pa.binary(), count, [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def _int64(count: int, numbers: memoryview) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers)])


_MS_MAX: Final = (2**63 - 1) // 1_000


def _times_ms(published_ms: memoryview) -> NDArray[np.int64]:
    """Return publish times in milliseconds, clipped to the range of Spark's microseconds; senders may set any time."""
    return np.clip(np.frombuffer(published_ms, dtype=np.int64), -_MS_MAX, _MS_MAX)


PAGE: Final = Limit(1_000)
"""The limit of one page, by entries and bytes. At most two pages are in memory: one is read ahead."""
LARGE_ENTRY_ROWS: Final = 4_000
"""An entry with so many messages becomes its own batch, without a copy; smaller ones are combined."""


def read_task(parts: Sequence[SegmentPartition], task: TaskAttempt, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Register the ranges of the micro-batch, then yield the messages of the partitions in order.

    All registrations precede the first row: a commit without registration would treat the batch as one without
    acknowledgments.
    """
    pauses = Pauses.from_environment()
    doing = {
        "query": task.batch.query,
        "run": task.batch.run,
        "segment": parts[0].segment,
        "after": parts[0].after,
        "upto": parts[0].upto,
    }
    pauses.reach(PLANNED, task.batch.batch, **doing)
    host = process.host(parts[0].stores)
    for registration in dict.fromkeys(part.registration for part in parts):
        if registration is not None:
            process.run(retry_unavailable(host, partial(register, host.metadata, task.batch, registration)))
    pauses.reach(REGISTERED, task.batch.batch, **doing)
    for part in parts:
        yield from read_entries(part, schema)


def read_entries(partition: SegmentPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a partition's messages in order."""
    pages: PageReader = process.run(PageReader.open(process.host(partition.stores), partition))
    try:
        while page := process.run(pages.following()):
            yield from page_batches(page, partition, schema)
    finally:
        process.run(pages.close())


class PageReader:
    """The entries of a partition, page by page; the next page is read while one is converted."""

    def __init__(self, ledger: IManagedLedger, partition: SegmentPartition) -> None:
        self._ledger = ledger
        self._partition = partition
        self._ahead = self._begin(partition.after)

    @classmethod
    async def open(cls, host: Host, partition: SegmentPartition) -> PageReader:
        """Open the ledger and start to read."""
        return cls(await host.ledgers.open(partition.segment), partition)

    async def following(self) -> tuple[LedgerEntry, ...]:
        """Return the next page; empty after the last one."""
        page = await self._ahead
        if page:
            self._ahead = self._begin(page[-1].position)
        return page

    async def close(self) -> None:
        """Cancel the read in progress and close the ledger."""
        self._ahead.cancel()
        await asyncio.gather(self._ahead, return_exceptions=True)
        await self._ledger.close()

    def _begin(self, after: Position) -> asyncio.Task[tuple[LedgerEntry, ...]]:
        return start_task(self._read(after))

    async def _read(self, after: Position) -> tuple[LedgerEntry, ...]:
        upto = self._partition.upto
        while after < upto:
            try:
                page: tuple[LedgerEntry, ...] = await self._ledger.read(EntryRange(after, upto), PAGE)
                return page
            except EntryTrimmed as error:
                # Trimmed since the task was planned.
                first = upto if error.first is None else before(error.first)
                if not self._partition.skips_trimmed:
                    raise DataLost(self._partition.segment, str(after), str(first)) from error
                after = max(first, Position(after.ledger_id, after.entry_id + 1))
        return ()


def page_batches(page: Sequence[LedgerEntry], partition: SegmentPartition, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return the messages of a page that count, as record batches.

    Aborted messages, and those that the subscription acknowledged individually, are left out.
    """
    segment = parse_name(partition.segment)
    acknowledged = dict(partition.partial)
    found: list[pa.RecordBatch] = []
    few: list[pa.RecordBatch] = []
    for entry in page:
        if any(first <= entry.position <= last for first, last in partition.deleted):
            continue
        arrays = EntryArrays(entry.data, entry.position, segment, partition.topic)
        branch = arrays.view.branch
        # Before a migration, the log-driven family left its own entries between the messages.
        if branch is not None and (branch in partition.aborted or branch.is_control):
            continue
        kept = _kept(arrays.view, entry.position, partition, acknowledged.get(entry.position))
        if kept is not None and not len(kept):
            continue
        batch = arrays.batch(schema, kept)
        # Each batch has a fixed cost in Spark, and entries are often small.
        if batch.num_rows < LARGE_ENTRY_ROWS:
            few.append(batch)
            continue
        found += (*_combine(few, schema), batch)
        few = []
    return found + _combine(few, schema)


def _kept(
    view: EntryView, position: Position, partition: SegmentPartition, done: frozenset[int] | None
) -> NDArray[np.intp] | None:
    """Return the indexes of an entry's messages that count; None: all of them."""
    first = partition.first.batch_index if partition.first and partition.first.entry == position else 0
    stop = partition.stop.batch_index if partition.stop and partition.stop.entry == position else view.count
    if not done and first == 0 and stop >= view.count:
        return None
    kept = np.ones(view.count, dtype=np.bool_)
    kept[:first] = False
    kept[stop:] = False
    kept[[index for index in done or () if index < view.count]] = False
    return np.nonzero(kept)[0]


def _combine(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Combine small batches into one."""
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return joined
