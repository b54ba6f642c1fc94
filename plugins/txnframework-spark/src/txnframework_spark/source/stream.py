"""The streaming source for Spark: one long-lived process plans offsets, and tasks read ranges."""

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
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from txnframework.broker import Host
from txnframework_spark import process
from txnframework_spark.errors import Unsupported
from txnframework_spark.microbatch.batch import current_task
from txnframework_spark.microbatch.pause import PARTITIONING, PLANNING, Pauses
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.process import retry_unavailable
from txnframework_spark.source.admission import NO_LIMIT, BatchLimit
from txnframework_spark.source.backlog import COUNT_MAX
from txnframework_spark.source.combined import CombinedPartition, Task, combine_small
from txnframework_spark.source.offsets import from_json
from txnframework_spark.source.partitions import SegmentPartition
from txnframework_spark.source.planner import InputPlanner
from txnframework_spark.source.reader import read_task
from txnframework_spark.source.subscriptions import HOLDER_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class TransactionalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics by offsets.

    Spark creates instances several times and in several processes, and pickles them. Creation has no side effects and
    does not fail, because Spark would hide the reason of a failure. The first call in the source-runner process takes
    the subscriptions over. That call is ``partitions`` after a restart with an unfinished batch, and ``initialOffset``
    for a new query.
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
        """Return the start of a new query; Spark calls it again when batch 0 is replayed."""
        planner = self._planner(begins=True)
        return process.run(retry_unavailable(planner.host, planner.initial)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the limits, because Spark takes only one; ``latestOffset`` applies all of them."""
        given = self._options
        if given.max_offsets_per_trigger is not None:
            return ReadMaxRows(given.max_offsets_per_trigger)
        if given.max_bytes_per_trigger is not None:
            return ReadMaxBytes(given.max_bytes_per_trigger)
        least = given.min_offsets_per_trigger
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or ``start`` itself if there is nothing new."""
        planner = self._planner()
        Pauses.from_environment().reach(PLANNING, None)
        given, before = self._options, from_json(start)
        most, least = NO_LIMIT, None
        # If Spark asks for everything, as with trigger(once=True), no limit applies.
        if not isinstance(limit, ReadAllAvailable):
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else given.max_offsets_per_trigger
            size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else given.max_bytes_per_trigger
            most = BatchLimit(rows or COUNT_MAX, size or COUNT_MAX)
            least = given.min_offsets_per_trigger
        after = process.run(retry_unavailable(planner.host, lambda: planner.latest(before, most, least)))
        return start if after is before else after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of all segments and the lag, for the query's progress."""
        planner = self._planner()
        return process.run(retry_unavailable(planner.host, planner.report))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the current ends as the end of the query; Spark calls this before it is known if the query is new."""
        planner = self._made()
        process.run(retry_unavailable(planner.host, planner.fix_targets))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the read tasks of a batch."""
        planner = self._planner()
        Pauses.from_environment().reach(PARTITIONING, None)
        return process.run(retry_unavailable(planner.host, lambda: self._tasks(planner, start, end)))

    async def _tasks(self, planner: InputPlanner, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Task]:
        partitions = await planner.partitions(from_json(start), from_json(end))
        # These options say how many tasks there are.
        if self._options.min_partitions is not None or self._options.max_records_per_partition is not None:
            return partitions
        return await combine_small(planner.host, partitions)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the sink's transaction acknowledges, and this call may be late or missing."""

    def stop(self) -> None:
        """Release leases; Spark may end the process without this call."""
        if self._opened is not None:
            process.run(self._opened.close())
            self._opened = None

    def _planner(self, begins: bool = False) -> InputPlanner:
        """Return the planner after the takeover of the subscriptions; ``begins``: the query is new."""
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
        from pyspark.sql.pandas.types import to_arrow_schema  # Spark compares the batches' schema with its result

        if isinstance(partition, SegmentPartition):
            partition = CombinedPartition((partition,))
        if not isinstance(partition, CombinedPartition):
            raise Unsupported("this partition was planned by another source")
        yield from read_task(partition.parts, current_task(), to_arrow_schema(self._schema, timezone="UTC"))


async def _made(host: Host, options: SourceOptions, holder: str) -> InputPlanner:
    # A coroutine, because the planner must be created on the loop on which it runs.
    return InputPlanner.of(host, options, holder)
