"""The source of Spark's batch queries: planned once for each action, then read in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from txnframework_spark import process
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.conditions import Condition, claimed
from txnframework_spark.source.partition import SegmentPartition
from txnframework_spark.source.reading import read_entries
from txnframework_spark.source.snapshot import plan_snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class SnapshotReader(DataSourceReader):
    """Reads the messages that are stored when the read is planned; creation has no side effects."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(options).for_batch()
        self._schema = schema
        self._conditions: tuple[Condition, ...] = ()
        # If spark.sql.python.filterPushdown.enabled is false, which is the default, Spark refuses a reader that
        # overrides pushFilters. So the method is set on the instance.
        self.pushFilters = _Offered(self)  # type: ignore[method-assign]

    def take_filters(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply the filters that can be applied completely; return the others."""
        self._conditions, left = claimed(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """Return the read tasks; the ends of the segments are determined now."""
        host = process.host(self._options.stores)
        return process.run(plan_snapshot(host, self._options, self._conditions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's messages as Arrow record batches."""
        from pyspark.sql.pandas.types import to_arrow_schema  # Spark compares the batches' schema with its result

        # Spark passes a partition of its own if there is nothing to read.
        if isinstance(partition, SegmentPartition):
            yield from read_entries(partition, to_arrow_schema(self._schema, timezone="UTC"))


class _Offered:
    """A ``pushFilters`` that can be called, but that Spark does not recognise as an override of the method."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Any:
        return self._reader.take_filters(filters)
