"""A task attempt's rows into the segments of their topics, under the attempt's own branch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnframework.broker import Host
from txnframework.errors import LedgerSealed, OutcomeUnknown
from txnframework.model.entries import encode_columns
from txnframework.model.hashing import key_hashes, keyless_hashes
from txnframework.model.ids import Branch
from txnframework.model.layout import Layout
from txnframework.model.ledger import Append, ProducerSequence
from txnframework.model.names import TopicName
from txnframework_spark.errors import Unsupported
from txnframework_spark.options.given import topic_of
from txnframework_spark.sink.columns import as_binary, entry_columns

_REROUTES_MAX: Final = 64
"""How many splits and merges of one topic one write may meet; more means that something is wrong with the layout."""


class BranchWriter:
    """Writes under one branch of a transaction; after an error the branch is given up, and so never listed.

    ``producer`` contains the branch: a retried attempt is another producer, whose copies are judged by their branch and
    not taken for repetitions of the first attempt's.
    """

    def __init__(self, host: Host, branch: Branch, producer: str) -> None:
        self._host = host
        self._branch = branch
        self._producer = producer
        self._next_sequence = 0
        self._layouts: dict[TopicName, Layout] = {}
        self.rows = 0

    async def write(self, rows: pa.RecordBatch, topic: TopicName | None) -> None:
        """Return when every row is durable; ``topic`` None: the column ``topic`` names it."""
        for name, part in _by_topic(rows, topic):
            await self._write_topic(name, part)
        self.rows += rows.num_rows

    async def _write_topic(self, topic: TopicName, rows: pa.RecordBatch) -> None:
        sequences = pa.array(range(self._next_sequence, self._next_sequence + rows.num_rows), pa.int64())
        self._next_sequence += rows.num_rows
        left = rows.append_column("_sequence", sequences)
        layout = self._layouts.get(topic) or await self._host.topics.layout(topic)
        for _ in range(_REROUTES_MAX):
            self._layouts[topic] = layout
            left = await self._write_routed(layout, left)
            if not left.num_rows:
                return
            # A segment was sealed under us: its children take the rest, in the same transaction and branch.
            layout = await self._host.topics.finish_changes(topic)
        raise Unsupported(f"topic {topic} was split or merged {_REROUTES_MAX} times during one write")

    async def _write_routed(self, layout: Layout, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Write each row to its segment; return the rows whose segment turned out to be sealed."""
        hashes = self._hashes(rows)
        active = layout.active()
        starts = np.array([segment.start for segment in active])
        places = np.searchsorted(starts, hashes, side="right") - 1
        refused: list[pa.RecordBatch] = []
        for number, segment in enumerate(active):
            mine = rows.take(pa.array(np.nonzero(places == number)[0], pa.int64()))
            if not mine.num_rows:
                continue
            try:
                await self._append(str(layout.name_of(segment.id)), mine)
            except LedgerSealed:
                refused.append(mine)
        if not refused:
            return rows.slice(0, 0)
        left = pa.Table.from_batches(refused).sort_by("_sequence").combine_chunks()
        return left.to_batches()[0]

    def _hashes(self, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        sequences = rows.column("_sequence").to_pylist()
        if "key" not in rows.schema.names:
            return np.array(keyless_hashes(self._producer, sequences), dtype=np.int64)
        keys = as_binary(rows.column("key"), "key").take(pa.array(range(rows.num_rows), pa.int64()))
        _, offsets, data = keys.buffers()
        view = memoryview(offsets).cast("i")[: rows.num_rows + 1]
        hashes = np.array(key_hashes(view, b"" if data is None else memoryview(data)), dtype=np.int64)
        if keys.null_count:
            keyless = np.array(keyless_hashes(self._producer, sequences), dtype=np.int64)
            hashes = np.where(keys.is_null().to_numpy(zero_copy_only=False), keyless, hashes)
        return hashes

    async def _append(self, name: str, rows: pa.RecordBatch) -> None:
        """Append the rows as entries of bounded size; LedgerSealed: none of them."""
        segment = await self._host.segment(name)
        entries = tuple(self._entry(part) for part in self._cut(rows))
        unknown: OutcomeUnknown | None = None
        for _ in range(self._host.config.client.retries_max + 1):
            try:
                await segment.buffer.append(entries)
                return
            except OutcomeUnknown as error:
                # The same sequences again: what is stored already is confirmed and not stored twice.
                unknown = error
            except LedgerSealed:
                if unknown is None:
                    raise
                # They may stand in the sealed segment; written to a child as well they would be there twice.
                break
        assert unknown is not None
        raise unknown

    def _entry(self, rows: pa.RecordBatch) -> Append:
        sequences = rows.column("_sequence")
        columns = entry_columns(rows, sequences, self._host.environment.now_ms())
        token = ProducerSequence(self._producer, sequences[0].as_py(), sequences[-1].as_py())
        data = encode_columns(columns, self._producer, self._branch)
        return Append(data, rows.num_rows, self._branch, token)

    def _cut(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut rows into entries of at most so many messages and bytes; a single larger message stands alone."""
        bounds = self._host.config.client
        sizes = pc.fill_null(pc.binary_length(as_binary(rows.column("value"), "value")), 0).to_numpy()
        if "key" in rows.schema.names:
            sizes = sizes + pc.fill_null(pc.binary_length(as_binary(rows.column("key"), "key")), 0).to_numpy()
        largest = int(sizes.max())
        if largest > bounds.message_bytes_max:
            raise Unsupported(
                f"a message of {largest} bytes is larger than client.message_bytes_max ({bounds.message_bytes_max})"
            )
        ends = np.cumsum(sizes, dtype=np.int64)
        first = 0
        while first < rows.num_rows:
            before = int(ends[first - 1]) if first else 0
            fitting = int(np.searchsorted(ends, before + bounds.entry_bytes_max, side="right"))
            last = min(max(fitting, first + 1), first + bounds.entry_messages_max, rows.num_rows)
            yield rows.slice(first, last - first)
            first = last


def _by_topic(rows: pa.RecordBatch, topic: TopicName | None) -> Iterator[tuple[TopicName, pa.RecordBatch]]:
    """Return the rows by topic, in order within each, without the column ``topic``."""
    names = rows.schema.names
    columns = rows.select([name for name in names if name != "topic"])
    if topic is not None:
        if rows.num_rows:
            yield topic, columns
        return
    given = rows.column("topic").cast(pa.string())
    if given.null_count:
        raise Unsupported("column topic has a null and there is no option topic to stand in for it")
    for name in pc.unique(given).to_pylist():
        yield topic_of("column topic", name), columns.filter(pc.equal(given, name))
