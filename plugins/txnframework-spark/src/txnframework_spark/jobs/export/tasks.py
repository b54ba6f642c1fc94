"""What tasks of an export do: read ranges as the columns of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from txnframework.interfaces import IManagedLedger
from txnframework.model.ledger import LedgerEntry
from txnframework.model.positions import EntryRange, Limit
from txnframework_spark import process
from txnframework_spark.options.stores import StoreOptions
from txnframework_spark.source.columns import columns_of
from txnframework_spark.source.partition import SegmentPartition
from txnframework_spark.source.reading import page_batches

if TYPE_CHECKING:
    from txnframework_spark.jobs.progress import Meter

Batches: TypeAlias = Iterator[pa.RecordBatch]

COLUMNS: Final = columns_of(headers=True, transaction=False)
_PAGE: Final = Limit(1_000)


def reading(stores: StoreOptions, tasks: Sequence[SegmentPartition], meter: Meter) -> Callable[[Batches], Batches]:
    """Return what reads the ranges whose numbers a task is given; made where the Spark session is."""
    from pyspark.sql.pandas.types import to_arrow_schema  # what Spark compares the batches' schema with
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(COLUMNS)
    assert isinstance(columns, StructType)
    schema = to_arrow_schema(columns, timezone="UTC")
    messages, size = meter.messages, meter.bytes

    def read(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in _batches(stores, tasks[number], schema):
                    messages.add(rows.num_rows)
                    size.add(rows.nbytes)
                    yield rows

    return read


def _batches(stores: StoreOptions, planned: SegmentPartition, schema: pa.Schema) -> Batches:
    ledger: IManagedLedger = process.run(process.host(stores).ledgers.open(planned.segment))
    try:
        after = planned.after
        while after < planned.upto:
            page: tuple[LedgerEntry, ...] = process.run(ledger.read(EntryRange(after, planned.upto), _PAGE))
            if not page:
                return
            after = page[-1].position
            yield from page_batches(page, planned, schema)
    finally:
        process.run(ledger.close())
