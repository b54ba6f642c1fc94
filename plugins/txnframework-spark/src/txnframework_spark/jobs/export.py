"""``txnframework job export``: messages committed since the last export, as Parquet, each message once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from txnframework.broker import Host
from txnframework.errors import InvalidInput
from txnframework.model.layout import Layout
from txnframework.model.names import PERSISTENT, TopicName
from txnframework.model.positions import EARLIEST, Position
from txnframework_spark import process
from txnframework_spark.errors import DataLost, ExportConflict, JobFailed, TopicLost, UnusableFolder, describe_error
from txnframework_spark.jobs.export_folder import Exported, ExportFolder
from txnframework_spark.jobs.session import JobProgress, Meter
from txnframework_spark.microbatch.registration import Range
from txnframework_spark.options.parser import StoreOptions
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.offsets import first_untrimmed
from txnframework_spark.source.partitions import RangePartitioner, SegmentPartition
from txnframework_spark.source.reader import read_entries, source_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The ranges of one export, and the end of each segment; ``life`` identifies the topic across deletions."""

    life: int
    ranges: tuple[Range, ...]
    upto: Mapping[str, Position]


async def plan_export(host: Host, layout: Layout, last: Exported | None) -> ExportPlan:
    """
    Return the ranges after the last export.

    The first export begins at the first message that was not trimmed; later ones must be complete.
    """
    before = {} if last is None else last.positions()
    ranges: list[Range] = []
    upto: dict[str, Position] = {}
    for segment_id in layout.made():
        name = str(layout.name_of(segment_id))
        opened = await host.segment(name)
        start = before.get(name, EARLIEST) if last is not None else await first_untrimmed(opened.ledger)
        # This process may know an older max read position than the last export; exported messages are not repeated.
        end = upto[name] = max(start, await opened.buffer.max_read_position())
        if start < end:
            ranges.append(Range(str(layout.topic), name, start, end))
    return ExportPlan(layout.life, tuple(ranges), {**before, **upto})


def check_topic(last: Exported | None, store: str, layout: Layout, folder: str) -> None:
    """
    Reject the export of two topics into one folder.

    :raises UnusableFolder: the folder contains exports of another topic, or of one that was deleted since.
    """
    if last is None or (last.store, last.topic, last.life) == (store, str(layout.topic), layout.life):
        return
    if last.topic != str(layout.topic):
        reason = f"contains exports of {last.topic}; use another folder for {layout.topic}"
    elif last.store != store:
        reason = f"contains exports of {last.topic} of another store; use another folder"
    else:
        reason = f"contains exports of a {last.topic} that was deleted since; use another folder for the new one"
    raise UnusableFolder(folder, reason)


Batches: TypeAlias = Iterator[pa.RecordBatch]

COLUMNS: Final = source_columns(headers=True, transaction=False)


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


DATE: Final = "date"
_TOKEN_BITS: Final = 62


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of an export; ``exported`` None: nothing was committed since the last export."""

    folder: ExportFolder
    last: Exported | None
    exported: Exported | None = None
    files: int = 0
    bytes: int = 0

    def document(self) -> dict[str, object]:
        """Return the result for a table or for JSON."""
        now = self.exported or self.last
        return {
            "export": None if self.exported is None else self.exported.number,
            "messages": 0 if self.exported is None else self.exported.messages,
            "files": self.files,
            "bytes": self.bytes,
            "folder": str(self.folder.path),
            "upto": {} if now is None else now.upto,
        }


@dataclass(frozen=True, slots=True)
class Export:
    """An export; ``messages_max``: of one task, which writes one file (for each date, with ``by_date``)."""

    stores: StoreOptions
    topic: TopicName
    folder: ExportFolder
    messages_max: int
    by_date: bool = False
    skip_trimmed: bool = False

    def plan(self, host: Host) -> tuple[Exported | None, ExportPlan, list[SegmentPartition]]:
        """
        Return the last export, the ranges to export, and the tasks that read them; changes nothing.

        :raises UnusableFolder: the folder contains other data.
        :raises JobFailed: messages were trimmed before they were exported.
        """
        return process.run(self._plan(host))

    async def _plan(self, host: Host) -> tuple[Exported | None, ExportPlan, list[SegmentPartition]]:
        if self.topic.domain == PERSISTENT:
            raise InvalidInput(f"{self.topic} cannot be exported; only topic:// topics can")
        layout = await host.topics.layout(self.topic)
        last = self.folder.last()
        check_topic(last, host.metadata.identity, layout, str(self.folder.path))
        found = await plan_export(host, layout, last)
        cutting = RangePartitioner(host, self._options(), {}, {})
        try:
            return last, found, await cutting.tasks(found.ranges)
        except (DataLost, TopicLost) as error:
            raise JobFailed(
                f"messages of {layout.topic} were trimmed before they were exported; use --skip-trimmed to continue"
                " without them; a longer [retention] or more frequent exports prevent this"
            ) from error

    def _options(self) -> SourceOptions:
        return SourceOptions.parse(
            {
                "subscribe": str(self.topic),
                "maxRecordsPerPartition": str(self.messages_max),
                "failOnDataLoss": str(not self.skip_trimmed).lower(),
            }
        )

    def run(self, spark: SparkSession, progress: JobProgress) -> ExportReport:
        """
        Export the messages that were committed since the last export.

        :raises ExportInTheWay: another export finished first.
        :raises JobFailed: a task failed; nothing of this export is visible.
        """
        host = process.host(self.stores)
        with progress.step("planning"):
            last, found, tasks = self.plan(host)
        self.folder.clean(0 if last is None else last.number)
        if not tasks:
            return ExportReport(self.folder, last)
        number = 1 if last is None else last.number + 1
        staged = self.folder.staged(number, f"{host.environment.random_bits(_TOKEN_BITS):016x}")
        try:
            meter = Meter(spark)
            with progress.tasks("exporting", spark, meter):
                rows = self._write(spark, tasks, staged, meter)
            files, size, messages = _written(staged)
            require_shared(self.folder.path, rows, messages)
            if not messages:  # all messages were aborted
                return ExportReport(self.folder, last)
            exported = Exported(
                store=host.metadata.identity,
                topic=str(self.topic),
                life=found.life,
                number=number,
                upto={segment: str(at) for segment, at in found.upto.items()},
                messages=messages,
                created_ms=host.environment.now_ms(),
            )
            self.folder.finish(staged, exported)
        except ExportConflict:
            raise
        except Exception as error:
            raise self._why(number, error) from error
        finally:
            self.folder.remove(staged)
        self.folder.clean(number)
        return ExportReport(self.folder, last, exported, files, size)

    def _why(self, number: int, error: Exception) -> Exception:
        """Return the error to raise: after another export finished, its cleanup may cause any error here."""
        last = self.folder.last()
        if last is not None and last.number >= number:
            return ExportConflict(str(self.folder.path), number)
        return JobFailed(f"{self.topic} was not exported: {describe_error(error)}")

    def _write(self, spark: SparkSession, tasks: Sequence[SegmentPartition], staged: Path, meter: Meter) -> int:
        """Write all ranges; return the minimum number of rows that executors have written."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        written = Observation()
        rows = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(reading(self.stores, tasks, meter), COLUMNS)
        if self.by_date:
            rows = rows.selectExpr("*", f"date(timestamp) AS {DATE}")
        writer = rows.observe(written, f.count(f.lit(1)).alias("rows")).write.mode("error")
        (writer.partitionBy(DATE) if self.by_date else writer).parquet(staged.as_uri())
        return int(written.get["rows"])


def require_shared(path: Path, rows: int, messages: int) -> None:
    """Raise InvalidInput if this process does not see the executors' files: the export's positions would skip them."""
    if messages < rows:
        raise InvalidInput(
            f"executors wrote {rows} messages, but {path} contains {messages} of them; it must be a folder that all"
            " machines share"
        )


def _written(staged: Path) -> tuple[int, int, int]:
    """Return the number of Parquet files that tasks have written, their bytes, and their rows."""
    import pyarrow.parquet as pq

    files = sorted(staged.rglob("*.parquet"))
    return len(files), sum(one.stat().st_size for one in files), sum(pq.read_metadata(one).num_rows for one in files)
