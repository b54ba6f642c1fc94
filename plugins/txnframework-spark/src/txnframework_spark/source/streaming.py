"""The source as Spark sees it: offsets are planned in one long-lived process, ranges are read in tasks."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from txnframework.broker import Host
from txnframework_spark import process
from txnframework_spark.errors import Unsupported
from txnframework_spark.microbatch.pause import PARTITIONING, PLANNING, Pauses
from txnframework_spark.microbatch.tasks import current_task
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.outage import outlast
from txnframework_spark.source.offsets import from_json
from txnframework_spark.source.partition import SegmentPartition
from txnframework_spark.source.planner import InputPlanner
from txnframework_spark.source.reading import read_partition
from txnframework_spark.source.takeover import HOLDER_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class TransactionalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics by offsets.

    Made several times and in several processes, pickled in between; making one has no effect, and does not fail: Spark
    would tell that a variable of its own is not there, and not why. The first call in the source-runner process that
    plans takes the subscriptions over: after a restart with an unfinished batch that is ``partitions``, with a new
    query ``initialOffset``.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._opened: InputPlanner | None = None
        self._has_taken = False

    @cached_property
    def _options(self) -> SourceOptions:
        return SourceOptions.parse(self._given).for_stream()

    # -- in the source-runner process ----------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins; asked again when batch 0 is replayed."""
        planner = self._planner(begins=True)
        return process.run(outlast(planner.host, planner.initial)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxOffsetsPerTrigger``, or ``minOffsetsPerTrigger``: Spark takes one limit of a Python source."""
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or ``start`` itself when there is nothing new."""
        planner = self._planner()
        Pauses.from_environment().reach(PLANNING, None)
        messages_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # Where Spark asks for everything, as with trigger(once=True), nothing waits for more.
        messages_min = None if isinstance(limit, ReadAllAvailable) else self._options.min_offsets_per_trigger
        before = from_json(start)
        after = process.run(outlast(planner.host, lambda: planner.latest(before, messages_max, messages_min)))
        return start if after is before else after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return how far everything could be read, and the lag, for the query's progress."""
        planner = self._planner()
        return process.run(outlast(planner.host, planner.report))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at what can be read now; comes first, and does not tell yet whether the query is new."""
        planner = self._made()
        process.run(outlast(planner.host, planner.fix_targets))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the read tasks of a batch."""
        planner = self._planner()
        Pauses.from_environment().reach(PARTITIONING, None)
        return process.run(outlast(planner.host, lambda: planner.partitions(from_json(start), from_json(end))))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the sink's transaction acknowledges, and this call lags or never comes."""

    def stop(self) -> None:
        """Give leases back, if Spark gets as far as calling this."""
        if self._opened is not None:
            process.run(self._opened.close())
            self._opened = None

    def _planner(self, begins: bool = False) -> InputPlanner:
        """Return the planner, which has taken the subscriptions over; ``begins``: for a new query."""
        planner = self._made()
        if not self._has_taken:
            process.run(planner.take(begins))
            self._has_taken = True
        return planner

    def _made(self) -> InputPlanner:
        if self._opened is None:
            host = process.host(self._options.stores, sweep=True)
            holder = f"{HOLDER_PREFIX}{os.getpid()} on {socket.gethostname()}"
            self._opened = process.run(_made(host, self._options, holder))
        return self._opened

    # -- in tasks ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's messages as Arrow record batches."""
        from pyspark.sql.pandas.types import to_arrow_schema  # what Spark compares the batches' schema with

        if not isinstance(partition, SegmentPartition):
            raise Unsupported("this partition was planned by another source")
        yield from read_partition(partition, current_task(), to_arrow_schema(self._schema, timezone="UTC"))


async def _made(host: Host, options: SourceOptions, holder: str) -> InputPlanner:
    # On the loop, on which all of it runs.
    return InputPlanner.of(host, options, holder)
