"""The source as Spark's batches see it: planned once for each action, then read in tasks."""

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
    """Reads what is there when the read is planned; making one has no effect."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(options).for_batch()
        self._schema = schema
        self._conditions: tuple[Condition, ...] = ()
        # Spark refuses a reader that takes filters where spark.sql.python.filterPushdown.enabled is false, which is
        # the default, instead of keeping them to itself.
        self.pushFilters = _Offered(self)  # type: ignore[method-assign]

    def take_filters(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply the filters that can be applied wholly; return the others."""
        self._conditions, left = claimed(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """Return the read tasks; the ends are taken now."""
        host = process.host(self._options.stores)
        return process.run(plan_snapshot(host, self._options, self._conditions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's messages as Arrow record batches."""
        from pyspark.sql.pandas.types import to_arrow_schema  # what Spark compares the batches' schema with

        # Where there is nothing to read Spark makes up a partition.
        if isinstance(partition, SegmentPartition):
            yield from read_entries(partition, to_arrow_schema(self._schema, timezone="UTC"))


class _Offered:
    """``pushFilters`` for whoever calls it, and not there for whoever asks whether the class overrides it."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Any:
        return self._reader.take_filters(filters)
