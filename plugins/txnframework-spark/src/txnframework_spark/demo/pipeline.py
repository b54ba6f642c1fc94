"""The job that the demo runs, kills and runs again: ``python -m txnframework_spark.demo.pipeline``.

It reads a topic as a stream and enriches every row; some rows produce an alert. One sink writes rows and alerts to two
topics. One micro-batch is one transaction over both outputs and the acknowledgment of its input. This module has no
code for kills: the options ``groupId`` and ``txnAppId`` make the pipeline exactly once.

It stops when all input that existed at its start is read, and immediately when its parent process has ended.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from txnframework_spark.demo.input import ALERT_DIGESTS, ALERT_RATING_MIN, InputFormat
from txnframework_spark.errors import extract_reason
from txnframework_spark.processes import FAILURE, exit_with_parent
from txnframework_spark.session import LOCAL_CHECKPOINT, require_this_interpreter
from txnframework_spark.workers import WORKER_SETTINGS, worker_nursery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ROW: Final = "line BIGINT, fields MAP<STRING, STRING>"


@dataclass(frozen=True, slots=True)
class DemoJob:
    """The parameters of a pipeline: its input and outputs, and its names."""

    config: Path
    checkpoint: Path
    kind: InputFormat
    source: str
    enriched: str
    alerts: str
    group: str
    application: str
    batch: int

    def to_arguments(self) -> list[str]:
        """Return the command line that ``parse`` reads back."""
        return [
            f"--config={self.config}",
            f"--checkpoint={self.checkpoint}",
            f"--kind={self.kind.value}",
            f"--source={self.source}",
            f"--enriched={self.enriched}",
            f"--alerts={self.alerts}",
            f"--group={self.group}",
            f"--application={self.application}",
            f"--batch={self.batch}",
        ]

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> DemoJob:
        """Return the job that a command line describes."""
        parser = argparse.ArgumentParser(prog="python -m txnframework_spark.demo.pipeline", description=__doc__)
        parser.add_argument("--config", type=Path, required=True, help="configuration file that names the stores")
        parser.add_argument("--checkpoint", type=Path, required=True, help="Spark's checkpoint directory")
        parser.add_argument(
            "--kind", type=InputFormat, required=True, help="format of the rows: movielens, csv or jsonl"
        )
        parser.add_argument("--source", required=True, help="topic to read")
        parser.add_argument("--enriched", required=True, help="topic for every row")
        parser.add_argument("--alerts", required=True, help="topic for some rows")
        parser.add_argument("--group", required=True, help="subscription on the source")
        parser.add_argument("--application", required=True, help="name that is the same after restarts")
        parser.add_argument("--batch", type=int, required=True, help="rows in a micro-batch")
        return cls(**vars(parser.parse_args(arguments)))


def transform(events: DataFrame, job: DemoJob) -> DataFrame:
    """Return the rows for both outputs: topic, key and value; written in Spark, independent of ``expected``."""
    from pyspark.sql import functions as f

    parsed = events.select(
        "key",
        f.from_json(f.col("value").cast("string"), _ROW).alias("row"),
        f.substring(f.sha2(f.col("value"), 256), 1, 16).alias("digest"),
        f.struct("segment", "offset.ledger", "offset.entry", "offset.index").alias("place"),
    ).select("key", "row.line", "row.fields", "digest", "place")
    enriched, is_alert, reason = _of_ratings() if job.kind is InputFormat.MOVIELENS else _of_any_row()
    outputs = f.array(
        f.struct(f.lit(job.enriched).alias("topic"), f.to_json(f.struct("line", *enriched, "place")).alias("value")),
        f.when(
            is_alert,
            f.struct(
                f.lit(job.alerts).alias("topic"),
                f.to_json(f.struct("line", reason.alias("reason"), "place")).alias("value"),
            ),
        ),
    )
    # One pass over the input for both outputs; a union would read it twice.
    exploded = parsed.select("key", f.explode(f.array_compact(outputs)).alias("out"))
    return exploded.select("out.topic", "key", f.col("out.value").cast("binary").alias("value"))


def _of_ratings() -> tuple[list[Column], Column, Column]:
    """Return the additions to a rating, the condition of an alert, and its reason."""
    from pyspark.sql import functions as f

    field = f.col("fields")
    rating = field["rating"].cast("double")
    stars = f.expr("repeat('*', CAST(CAST(fields['rating'] AS DOUBLE) AS INT))")
    rated_at = f.date_format(f.timestamp_seconds(field["timestamp"].cast("bigint")), "yyyy-MM-dd'T'HH:mm:ss'Z'")
    enriched = [
        field["user"].cast("bigint").alias("user"),
        field["movie"].cast("bigint").alias("movie"),
        rating.alias("rating"),
        stars.alias("stars"),
        rated_at.alias("rated_at"),
        f.col("digest"),
    ]
    reason = f.concat(f.lit("user "), field["user"], f.lit(" gave movie "), field["movie"], f.lit(" "), stars)
    return enriched, rating >= ALERT_RATING_MIN, reason


def _of_any_row() -> tuple[list[Column], Column, Column]:
    from pyspark.sql import functions as f

    is_alert = f.substring("digest", 1, 1).isin(*ALERT_DIGESTS)
    return [f.col("fields"), f.col("digest")], is_alert, f.concat(f.lit("digest "), f.col("digest"))


def open_session(scratch: Path) -> SparkSession:
    """Provide a small Spark session that leaves no files outside of ``scratch``, even if it is killed."""
    from pyspark.sql import SparkSession

    scratch.mkdir(parents=True, exist_ok=True)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("txnframework demo")
        .config(map={**WORKER_SETTINGS, **LOCAL_CHECKPOINT})
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={scratch}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("WARN")
    return session


def run(job: DemoJob) -> None:
    """Run the job until all input that exists now is read."""
    scratch = job.checkpoint.parent / "spark"
    scratch.mkdir(parents=True, exist_ok=True)
    with worker_nursery(scratch):
        session = open_session(scratch)
        _copy(session, job)
        session.stop()


def _copy(session: SparkSession, job: DemoJob) -> None:
    events = (
        session.readStream.format("txnframework")
        .option("config", str(job.config))
        .option("subscribe", job.source)
        .option("groupId", job.group)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(job.batch))
        .load()
    )
    query = (
        transform(events, job)
        .writeStream.format("txnframework")
        .option("config", str(job.config))
        .option("txnAppId", job.application)
        .option("checkpointLocation", str(job.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the command line describes; the last line of standard error gives the reason of a failure."""
    job = DemoJob.parse(sys.argv[1:] if arguments is None else arguments)
    exit_with_parent()
    require_this_interpreter()
    try:
        run(job)
    except Exception as error:  # any error of Spark: its text is above, and its reason in one line at the end
        import traceback

        traceback.print_exc()
        sys.stderr.write(f"{FAILURE}{extract_reason(str(error)) or type(error).__name__}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
