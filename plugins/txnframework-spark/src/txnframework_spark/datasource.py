"""``format("txnframework")``."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from txnframework_spark.errors import Unsupported
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.sink.batch import JobWriter
from txnframework_spark.sink.streaming import TransactionalWriter
from txnframework_spark.source.batch import SnapshotReader
from txnframework_spark.source.columns import columns_of
from txnframework_spark.source.streaming import TransactionalReader


class TransactionalDataSource(DataSource):
    """Topics of txnframework as input and output; Spark makes it in several processes, with no effect."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "txnframework"

    def schema(self) -> str:
        """Return the source's columns; ``.schema(...)`` may ask for fewer of them."""
        options = SourceOptions.parse(self.options)
        return columns_of(options.include_headers, options.include_transaction)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the source."""
        return TransactionalReader(dict(self.options), schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the sink; only for output mode append."""
        if overwrite:
            raise Unsupported(
                "output mode complete would replace what a topic holds, which a log cannot; use output mode append, and"
                " with an aggregation a watermark"
            )
        return TransactionalWriter(dict(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the source of a batch."""
        return SnapshotReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Begin a batch job and return its sink; only for mode append."""
        if overwrite:
            raise Unsupported(
                "mode overwrite would replace what a topic holds, which a log cannot; use mode append, or delete the"
                " topic and create it again first: txnframework topic delete, txnframework topic create"
            )
        return JobWriter.begun(dict(self.options), schema)
