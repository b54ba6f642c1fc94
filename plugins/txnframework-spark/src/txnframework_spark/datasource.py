"""``format("txnframework")``."""

from __future__ import annotations

from typing import Final

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
from txnframework_spark.sink.job import JobWriter
from txnframework_spark.sink.stream import TransactionalWriter
from txnframework_spark.source.reader import source_columns
from txnframework_spark.source.snapshot import SnapshotReader
from txnframework_spark.source.stream import TransactionalReader

_NO_TABLE: Final = (
    "a topic cannot be a table of CREATE TABLE: Spark does not hand a table's options to a Python source; use CREATE"
    " TEMPORARY VIEW ... USING txnframework OPTIONS (...), or spark.read and spark.readStream"
)


class TransactionalDataSource(DataSource):
    """Reads and writes txnframework topics. Spark creates instances in several processes, without side effects."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "txnframework"

    def schema(self) -> str:
        """Return the columns of the source; ``.schema(...)`` may select fewer of them."""
        if "provider" in {name.lower() for name in self.options}:
            # Only CREATE TABLE passes the name of the provider as an option.
            raise Unsupported(_NO_TABLE)
        options = SourceOptions.parse(self.options)
        return source_columns(options.include_headers, options.include_transaction)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the streaming source."""
        return TransactionalReader(dict(self.options), schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the streaming sink; only output mode append is supported."""
        if overwrite:
            raise Unsupported(
                "output mode complete would replace the content of a topic, which a log does not support; use output"
                " mode append, and a watermark for aggregations"
            )
        return TransactionalWriter(dict(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch source."""
        self._require_options("subscribe names the topics to read, separated by commas")
        return SnapshotReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Begin a batch job and return its sink; only mode append is supported."""
        if overwrite:
            raise Unsupported(
                "mode overwrite would replace the content of a topic, which a log does not support; use mode append,"
                " or delete the"
                " topic and create it again first: txnframework topic delete, txnframework topic create"
            )
        if "topic" not in (name.lower() for name in schema.names):
            self._require_options("topic names the topic to write")
        return JobWriter.begun(dict(self.options), schema)

    def _require_options(self, missing: str) -> None:
        """Raise Unsupported if there are no options at all, as for a table that was made by CREATE TABLE."""
        if not dict(self.options):
            raise Unsupported(f"an option is missing: {missing}. If this is a table: {_NO_TABLE}")
