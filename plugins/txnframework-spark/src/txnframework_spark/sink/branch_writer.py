"""Staging of one task attempt's rows in the segments of their topics, under the attempt's own branch.

Appends to several segments run concurrently. Each segment gets its rows in order, and unconfirmed bytes are bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from txnframework.broker import Host
from txnframework.broker.quotas import TopicQuota
from txnframework.errors import LedgerSealed, OutcomeUnknown, TopicNotFound
from txnframework.model.entries import encode_columns
from txnframework.model.ids import BRANCH_BITS, Branch, TxnID
from txnframework.model.layout import Layout
from txnframework.model.ledger import Append, ProducerSequence
from txnframework.model.names import TopicName
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import start_task
from txnframework_spark import process
from txnframework_spark.errors import TopicMissing, Unsupported
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.sink.rows import ROW, cut, entry_columns, group_by_segment, group_by_topic, row_sizes, sink_rows


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Rows of one topic for one segment, and the entries that encode them."""

    topic: TopicName
    segment: str
    rows: pa.RecordBatch
    entries: tuple[Append, ...]

    @property
    def size(self) -> int:
        """The size of its entries in bytes."""
        return sum(len(entry.data) for entry in self.entries)


@dataclass(slots=True)
class _Queue:
    waiting: deque[SegmentRows] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class AppendQueue:
    """
    Appends in progress.

    Each segment has at most one call in progress, which takes all parts that wait for the segment when it begins. A
    slow store thus gets larger calls. Rows of one segment are stored in the order of ``put``, even if a reply was lost
    and a call is retried.
    """

    def __init__(self, host: Host, bytes_max: int) -> None:
        self._host = host
        self._bytes_max = bytes_max
        self._queues: dict[str, _Queue] = {}
        self._bytes = 0
        self._changed = asyncio.Event()
        self._refused: list[SegmentRows] = []
        self._error: BaseException | None = None

    @property
    def refused(self) -> bool:
        """Whether a segment was found sealed; its refused parts must be written elsewhere before any later rows."""
        return bool(self._refused)

    async def put(self, part: SegmentRows) -> None:
        """Queue the part, waiting until the byte limit allows it; raise the error of an earlier append."""
        # After an error no append is confirmed, so waiting for space would not end.
        while self._error is None and self._bytes and self._bytes + part.size > self._bytes_max:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        self._bytes += part.size
        queue = self._queues.setdefault(part.segment, _Queue())
        queue.waiting.append(part)
        if queue.task is None:
            queue.task = start_task(self._run(part.segment, queue))

    async def drain(self) -> list[SegmentRows]:
        """Wait until everything is durable; return the parts that sealed segments refused, or raise the first error."""
        while tasks := [queue.task for queue in self._queues.values() if queue.task is not None]:
            await asyncio.gather(*tasks)
        if self._error is not None:
            raise self._error
        refused, self._refused = self._refused, []
        return refused

    async def cancel(self) -> None:
        """
        Cancel the calls in progress.

        Durable entries belong to a branch that no commit lists.
        """
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, segment: str, queue: _Queue) -> None:
        try:
            while queue.waiting and self._error is None:
                parts = list(queue.waiting)
                queue.waiting.clear()
                try:
                    await self._append(segment, tuple(entry for part in parts for entry in part.entries))
                except LedgerSealed:
                    self._refused += parts
                except Exception as error:
                    self._error = error
                self._bytes -= sum(part.size for part in parts)
                self._changed.set()
        finally:
            queue.task = None

    async def _append(self, name: str, entries: tuple[Append, ...]) -> None:
        """Append the entries; LedgerSealed: none of them is stored."""
        buffer = (await self._host.segment(name)).buffer
        unknown: OutcomeUnknown | None = None
        bounds = self._host.config.client
        backoff = Backoff(self._host.environment, bounds.retry_delay_ms, bounds.retry_delay_ms_max)
        for failures in range(bounds.retries_max + 1):
            if failures:
                await backoff.pause(failures)
            try:
                await buffer.append(entries)
                return
            except OutcomeUnknown as error:
                # The retry repeats the sequence ids: entries that are stored are confirmed and not stored again.
                unknown = error
            except LedgerSealed:
                if unknown is None:
                    raise
                # They may be stored in the sealed segment; writing them to a child as well would duplicate them.
                break
        assert unknown is not None
        raise unknown


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
    producer. Its entries are judged by their branch, and are not mistaken for duplicates of the first attempt.
    """

    def __init__(self, host: Host, options: SinkOptions, branch: Branch | None, producer: str) -> None:
        self._host = host
        self._topic = options.topic
        self._branch = branch
        self._producer = producer
        self._bounds = host.config.client
        self._bytes_max = options.bytes_in_flight_max
        self._appends = AppendQueue(host, options.bytes_in_flight_max)
        self._layouts: dict[TopicName, Layout] = {}
        self._quotas: dict[TopicName, TopicQuota | None] = {}
        self._gathered: list[pa.RecordBatch] = []
        self._segments = 1
        self._next_sequence = 0
        self.rows = 0

    async def write(self, rows: pa.RecordBatch) -> None:
        """
        Accept rows; they are durable when ``finish`` has returned.

        :raises BacklogQuotaExceeded: the configuration has a quota, and a subscription of a topic is too far behind.
        """
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
        for topic, mine in group_by_topic(rows.append_column(ROW, numbers), self._topic):
            await self._require_room(topic)
            await self._route(topic, mine)
        if self._appends.refused:
            await self._settle()

    async def _require_room(self, topic: TopicName) -> None:
        """Raise BacklogQuotaExceeded if a subscription of the topic is too far behind; earlier rows may be stored."""
        if topic not in self._quotas:
            self._quotas[topic] = self._host.backlog_quotas.of(topic)
        quota = self._quotas[topic]
        if quota is not None:
            await quota.require_room()

    async def _route(self, topic: TopicName, rows: pa.RecordBatch) -> None:
        layout = self._layouts.get(topic)
        if layout is None:
            layout = self._layouts[topic] = await layout_of(self._host, topic)
        for segment, mine in group_by_segment(rows, layout, self._producer):
            self._segments += 1
            pieces = cut(mine, self._bounds.entry_messages_max, self._bounds.entry_bytes_max)
            entries = tuple(map(self._entry, pieces))
            await self._appends.put(SegmentRows(topic, str(layout.name_of(segment.id)), mine, entries))

    async def _settle(self) -> None:
        """
        Wait until everything is durable.

        Rows that a sealed segment refused are written to its children, in order.
        """
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
        largest = int(row_sizes(rows).max())
        if largest > self._bounds.message_bytes_max:
            raise Unsupported(
                f"a message of {largest} bytes is larger than client.message_bytes_max"
                f" ({self._bounds.message_bytes_max}) of the configuration; increase it, or write smaller messages"
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


def open_attempt_writer(host: Host, options: SinkOptions, txn_id: TxnID | None, name: str) -> tuple[BranchWriter, int]:
    """Return the writer of a new attempt and its branch number; ``txn_id`` None: outside of transactions."""
    # Random, because attempt numbers start over when a batch is replayed.
    number = host.environment.random_bits(BRANCH_BITS) | 1
    branch = None if txn_id is None else Branch(txn_id, number)
    return BranchWriter(host, options, branch, f"spark/{name}/{number:016x}"), number


def write_batches(
    writer: BranchWriter, batches: Iterator[pa.RecordBatch], halfway: Callable[[], None] | None = None
) -> None:
    """
    Write the task's input and return when all of it is durable.

    An attempt that fails leaves entries under a branch that no commit lists; they need no further step to be aborted.
    ``halfway`` is called once, when half of the first rows are durable.
    """
    try:
        for rows in batches:
            if halfway is None or not rows.num_rows:
                process.run(writer.write(rows))
                continue
            half = (rows.num_rows + 1) // 2
            process.run(writer.write(rows.slice(0, half)))
            process.run(writer.finish())
            halfway()
            halfway = None
            process.run(writer.write(rows.slice(half)))
        process.run(writer.finish())
    except BaseException:
        process.run(writer.cancel())
        raise
