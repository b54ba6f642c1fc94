"""The tasks of an export: reading ranges with the columns of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from txnframework_spark.options.stores import StoreOptions
from txnframework_spark.source.columns import columns_of
from txnframework_spark.source.partition import SegmentPartition
from txnframework_spark.source.reading import read_entries

if TYPE_CHECKING:
    from txnframework_spark.jobs.progress import Meter

Batches: TypeAlias = Iterator[pa.RecordBatch]

COLUMNS: Final = columns_of(headers=True, transaction=False)


def reading(stores: StoreOptions, tasks: Sequence[SegmentPartition], meter: Meter) -> Callable[[Batches], Batches]:
    """Return a function that reads the ranges with the numbers that a task gets; call it where Spark's session is."""
    from pyspark.sql.pandas.types import to_arrow_schema  # Spark compares the batches' schema with its result
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(COLUMNS)
    assert isinstance(columns, StructType)
    schema = to_arrow_schema(columns, timezone="UTC")
    messages, size = meter.messages, meter.bytes

    def read(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in read_entries(replace(tasks[number], stores=stores), schema):
                    messages.add(rows.num_rows)
                    size.add(rows.nbytes)
                    yield rows

    return read
