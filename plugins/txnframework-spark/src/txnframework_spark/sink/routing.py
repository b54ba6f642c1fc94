"""Distribution of rows by topic, by segment, and into entries of bounded size. Pure, whole columns, one pass each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnframework.model.layout import Layout, Segment
from txnframework.model.names import TopicName
from txnframework_spark.errors import Unsupported
from txnframework_spark.options.given import topic_of
from txnframework_spark.sink.hashing import Hashes, key_hashes, keyless_hashes

ROW: Final = "_row"
"""The column that numbers a task's rows."""


def by_topic(rows: pa.RecordBatch, topic: TopicName | None) -> Iterator[tuple[TopicName, pa.RecordBatch]]:
    """Yield the rows by topic, in order within each; ``topic`` None: the column ``topic`` names it."""
    if topic is not None:
        yield topic, rows
        return
    given = rows.column("topic")
    if given.null_count:
        raise Unsupported("column topic has a null and there is no option topic to stand in for it")
    named = pc.dictionary_encode(given)
    columns = rows.select([name for name in rows.schema.names if name != "topic"])
    spelled = [topic_of("column topic", name) for name in named.dictionary.to_pylist()]
    topics = list(dict.fromkeys(spelled))
    places = np.array([topics.index(name) for name in spelled], np.int64)
    for place, part in _grouped(columns, places[named.indices.to_numpy()], len(topics)):
        yield topics[place], part


def by_segment(rows: pa.RecordBatch, layout: Layout, producer: str) -> Iterator[tuple[Segment, pa.RecordBatch]]:
    """Yield the rows by the segment that their keys hash to, in order within each."""
    active = sorted(layout.active(), key=lambda segment: segment.start)
    if len(active) == 1:
        yield active[0], rows
        return
    starts = np.array([segment.start for segment in active])
    places = np.searchsorted(starts, hashes_of(rows, producer), side="right") - 1
    for place, part in _grouped(rows, places, len(active)):
        yield active[place], part


def hashes_of(rows: pa.RecordBatch, producer: str) -> Hashes:
    """Return the hash of each row: of its key or, without a key, of the producer and the row's number."""
    numbers = rows.column(ROW).to_numpy()
    keys = rows.column("key") if "key" in rows.schema.names else None
    if keys is None or keys.null_count == len(keys):
        return keyless_hashes(producer, numbers)
    hashes = key_hashes(keys)
    if keys.null_count:
        missing = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        hashes[missing] = keyless_hashes(producer, numbers[missing])
    return hashes


def cut(rows: pa.RecordBatch, messages_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Cut rows into entries of at most so many messages and bytes of key and value; a larger row gets its own entry."""
    ends = np.cumsum(sizes_of(rows))
    first = 0
    while first < rows.num_rows:
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + bytes_max, side="right"))
        last = min(max(fitting, first + 1), first + messages_max, rows.num_rows)
        yield rows.slice(first, last - first)
        first = last


def sizes_of(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the size of each row in bytes, key plus value."""
    columns = [rows.column(name) for name in ("key", "value") if name in rows.schema.names]
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in columns:
        lengths = pc.binary_length(column)
        sizes += (pc.fill_null(lengths, 0) if column.null_count else lengths).to_numpy()
    return sizes


def _grouped(rows: pa.RecordBatch, places: npt.NDArray[np.int64], count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each place that has any: sorted once, then sliced."""
    counts = np.bincount(places, minlength=count)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        yield int(present[0]), rows
        return
    # Stable, so rows keep their order; numpy sorts 16-bit integers by a radix sort.
    narrow = places.astype(np.int16) if count < 1 << 15 else places
    together = rows.take(pa.array(np.argsort(narrow, kind="stable")))
    first = 0
    for place in present:
        yield int(place), together.slice(first, int(counts[place]))
        first += int(counts[place])
