"""The source of Spark's batch queries: all ends are determined when a read is planned; nothing is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from txnframework.broker import Host
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName, parse_name, segment_id_of
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.reads import Isolation
from txnframework_spark import process
from txnframework_spark.errors import InvalidOption
from txnframework_spark.microbatch.registration import Range
from txnframework_spark.options.selection import Bound, Bounds, Edge
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.batch_plan import unfinished_segments
from txnframework_spark.source.offsets import before, find_time, resolve_bound
from txnframework_spark.source.partitions import RangePartitioner, SegmentPartition
from txnframework_spark.source.reader import read_entries
from txnframework_spark.source.topics import (
    list_matching_topics,
    missing_segment_message,
    restrict_layout,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class _SegmentBounds:
    """Messages from ``first`` on, if set, and before ``stop``; ``after`` and ``upto`` are bounds by whole entries."""

    topic: str
    segment: str
    after: Position
    upto: Position
    first: Position | None = None
    stop: Position | None = None


async def plan_snapshot(host: Host, options: SourceOptions) -> list[SegmentPartition]:
    """
    Return the read tasks of a batch.

    :raises TopicNotFound: a named topic does not exist.
    :raises InvalidOption: a place or a segment that the options name does not exist.
    :raises DataLost: messages after a named place were trimmed, and ``failOnDataLoss`` is on.
    """
    selection = options.selection
    topics = selection.topics if selection.pattern is None else await list_matching_topics(host, selection)
    layouts = [await host.topics.layout(topic) for topic in topics]
    segments = [(layout.topic, name) for layout in layouts for name in _to_read(layout, options)]
    ends = await asyncio.gather(*(_readable(host, options, name) for _, name in segments))
    bounds: dict[str, _SegmentBounds] = {}
    for (topic, name), end in zip(segments, ends, strict=True):
        found = await _bounds(host, options, topic, name, end)
        if found.after < found.upto:
            bounds[name] = found
    ranges = [Range(one.topic, one.segment, one.after, one.upto) for one in bounds.values()]
    tasks = await RangePartitioner(host, options, {}, {}).tasks(ranges)
    return [replace(task, first=bounds[task.segment].first, stop=bounds[task.segment].stop) for task in tasks]


def _to_read(layout: Layout, options: SourceOptions) -> list[str]:
    chosen = options.selection.assigned.get(layout.topic)
    part = layout if chosen is None else restrict_layout(layout, chosen)
    made = {str(layout.name_of(number)) for number in layout.made()}
    named = []
    for option, places in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        for number in _given(places).named.get(layout.topic, {}):
            if number not in part.segments:
                raise InvalidOption(option, missing_segment_message(layout, number))
            if option == "startingOffsets":
                named.append(str(layout.name_of(number)))
    return [name for name in unfinished_segments(part, named) if name in made]


async def _bounds(host: Host, options: SourceOptions, topic: TopicName, name: str, end: Position) -> _SegmentBounds:
    number = segment_id_of(parse_name(name))
    starting, ending = _given(options.starting), _given(options.ending)
    start, stop = _place(starting, topic, number), _place(ending, topic, number)
    if starting.at_ms is not None:
        after = await find_time(host, name, starting.at_ms)
    else:
        after = await resolve_bound(host, name, start, end)
    upto = end
    if ending.at_ms is not None:
        upto = min(end, await find_time(host, name, ending.at_ms))
    elif isinstance(stop, Position):
        # If only a part of an entry is read, that entry is the last one.
        upto = stop.entry if stop.batch_index > 0 else before(stop)
        if upto > end:
            raise InvalidOption("endingOffsets", f"{name} can be read up to {end} only, which is before {stop}")
        if isinstance(start, Position) and stop < start:
            raise InvalidOption("startingOffsets", f"the start {start} of {name} is after its end {stop}")
    return _SegmentBounds(
        str(topic),
        name,
        after,
        upto,
        first=start if isinstance(start, Position) and start.batch_index > 0 else None,
        stop=stop if isinstance(stop, Position) and stop.batch_index > 0 else None,
    )


def _place(places: Bounds, topic: TopicName, number: int) -> Bound:
    return places.named.get(topic, {}).get(number, places.default)


def _given(places: Bounds | None) -> Bounds:
    return places or Bounds(Edge.LATEST)


async def _readable(host: Host, options: SourceOptions, name: str) -> Position:
    opened = await host.segment(name)
    if options.isolation is Isolation.READ_UNCOMMITTED:
        return (await opened.ledger.tail()).last_confirmed
    return max(EARLIEST, await opened.buffer.max_read_position())


class SnapshotReader(DataSourceReader):
    """Reads the messages that are stored when the read is planned; creation has no side effects."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(options).for_batch()
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the read tasks; the ends of the segments are determined now."""
        host = process.host(self._options.stores)
        return process.run(plan_snapshot(host, self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's messages as Arrow record batches."""
        from pyspark.sql.pandas.types import to_arrow_schema  # Spark compares the batches' schema with its result

        # Spark passes a partition of its own if there is nothing to read.
        if isinstance(partition, SegmentPartition):
            yield from read_entries(partition, to_arrow_schema(self._schema, timezone="UTC"))
