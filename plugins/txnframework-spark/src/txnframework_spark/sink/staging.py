"""Staging of a task attempt's rows in the segments of their topics, under the attempt's own branch."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from txnframework.broker import Host
from txnframework.errors import TopicNotFound
from txnframework.model.entries import encode_columns
from txnframework.model.ids import Branch
from txnframework.model.layout import Layout
from txnframework.model.ledger import Append, ProducerSequence
from txnframework.model.names import TopicName
from txnframework_spark.errors import TopicMissing, Unsupported
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.sink.appends import Appends, Part
from txnframework_spark.sink.columns import entry_columns, sink_rows
from txnframework_spark.sink.routing import ROW, by_segment, by_topic, cut, sizes_of

_REROUTES_MAX: Final = 64
"""The limit of splits and merges of a topic during one write; a higher number indicates a defect in the layout."""


async def layout_of(host: Host, topic: TopicName) -> Layout:
    """Return the topic's layout, or raise TopicMissing."""
    try:
        return await host.topics.layout(topic)
    except TopicNotFound as error:
        raise TopicMissing(str(topic)) from error


class BranchWriter:
    """Writes under one branch of a transaction; after an error the branch is abandoned, and so never listed.

    ``branch`` None: outside of transactions. ``producer`` contains the branch, so a retried attempt is another
    producer: its entries are judged by their branch, and are not taken for duplicates of the first attempt's.
    """

    def __init__(self, host: Host, options: SinkOptions, branch: Branch | None, producer: str) -> None:
        self._host = host
        self._topic = options.topic
        self._branch = branch
        self._producer = producer
        self._bounds = host.config.client
        self._bytes_max = options.bytes_in_flight_max
        self._appends = Appends(host, options.bytes_in_flight_max)
        self._layouts: dict[TopicName, Layout] = {}
        self._gathered: list[pa.RecordBatch] = []
        self._segments = 1
        self._next_sequence = 0
        self.rows = 0

    async def write(self, rows: pa.RecordBatch) -> None:
        """Accept rows; they are durable when ``finish`` has returned."""
        if not rows.num_rows:
            return
        self._gathered.append(sink_rows(rows))
        # Send when each segment can get an entry of full size.
        full = sum(part.num_rows for part in self._gathered) >= self._bounds.entry_messages_max * self._segments
        if full or sum(part.nbytes for part in self._gathered) >= self._bytes_max:
            await self._send()

    async def finish(self) -> None:
        """Wait until every written row is durable."""
        if self._gathered:
            await self._send()
        await self._settle()

    async def cancel(self) -> None:
        """Cancel the appends in progress."""
        await self._appends.cancel()

    async def _send(self) -> None:
        gathered, self._gathered = self._gathered, []
        rows = pa.concat_batches(gathered) if len(gathered) > 1 else gathered[0]
        self._require_small(rows)
        numbers = pa.array(np.arange(self.rows, self.rows + rows.num_rows))
        self.rows += rows.num_rows
        self._segments = 0
        for topic, mine in by_topic(rows.append_column(ROW, numbers), self._topic):
            await self._route(topic, mine)
        if self._appends.refused:
            await self._settle()

    async def _route(self, topic: TopicName, rows: pa.RecordBatch) -> None:
        layout = self._layouts.get(topic)
        if layout is None:
            layout = self._layouts[topic] = await layout_of(self._host, topic)
        for segment, mine in by_segment(rows, layout, self._producer):
            self._segments += 1
            pieces = cut(mine, self._bounds.entry_messages_max, self._bounds.entry_bytes_max)
            entries = tuple(map(self._entry, pieces))
            await self._appends.put(Part(topic, str(layout.name_of(segment.id)), mine, entries))

    async def _settle(self) -> None:
        """Wait until everything is durable; rows that a sealed segment refused go to its children, in order."""
        for _ in range(_REROUTES_MAX):
            refused = await self._appends.drain()
            if not refused:
                return
            for topic in sorted({part.topic for part in refused}, key=str):
                # The rerouted rows stay in the same transaction and branch.
                self._layouts[topic] = await self._host.topics.finish_changes(topic)
                parts = [part.rows for part in refused if part.topic == topic]
                await self._route(topic, pa.Table.from_batches(parts).sort_by(ROW).combine_chunks().to_batches()[0])
        raise Unsupported(f"topics were split or merged {_REROUTES_MAX} times during one write")

    def _require_small(self, rows: pa.RecordBatch) -> None:
        largest = int(sizes_of(rows).max())
        if largest > self._bounds.message_bytes_max:
            raise Unsupported(
                f"a message of {largest} bytes is larger than client.message_bytes_max"
                f" ({self._bounds.message_bytes_max}) of the configuration; raise that, or write smaller messages"
            )

    def _entry(self, rows: pa.RecordBatch) -> Append:
        # Rows are numbered in the order of entries, not of arrival. A ledger stores only the first and last number of
        # an entry, so these ranges must not overlap.
        first = self._next_sequence
        self._next_sequence += rows.num_rows
        sequences = np.arange(first, self._next_sequence, dtype=np.int64)
        columns = entry_columns(rows, sequences, self._host.environment.now_ms())
        token = ProducerSequence(self._producer, first, self._next_sequence - 1)
        data = encode_columns(columns, self._producer, self._branch)
        return Append(data, rows.num_rows, self._branch, token)
