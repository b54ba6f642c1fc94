"""Pipelines as a program: ``python -m txnframework_spark.testing.program JOBS``, with a list of jobs as JSON.

It runs until all input that existed at its start is read, and ends immediately when its parent process has ended.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from txnframework_spark.errors import extract_reason
from txnframework_spark.microbatch.pause import VARIABLE
from txnframework_spark.session import (
    LOCAL_CHECKPOINT,
    is_local,
    require_this_interpreter,
)
from txnframework_spark.testing.expectations import LEFT, RIGHT, WATERMARK_S
from txnframework_spark.testing.expectations import WINDOW_S as EVENT_WINDOW_S
from txnframework_spark.testing.processes import FAILURE, exit_with_parent
from txnframework_spark.workers import WORKER_SETTINGS, worker_nursery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW_S: Final = 10


class PipelineJob(msgspec.Struct, frozen=True):
    """A pipeline from topic ``in``; the defaults are those of a correct pipeline.

    ``plan``: one of PLANS. ``source``: an empty value removes a default option. ``conf``: Spark's configuration.
    """

    url: str
    checkpoint: str
    plan: str = "both"
    source: dict[str, str] = {}
    sink: dict[str, str] = {}
    master: str = "local[2,3]"
    conf: dict[str, str] = {}
    output_mode: str = "append"


def command_of(*jobs: PipelineJob) -> list[str]:
    """Return the command that runs the jobs in one session."""
    return [sys.executable, "-m", "txnframework_spark.testing.program", msgspec.json.encode(jobs).decode()]


def both(frame: DataFrame) -> DataFrame:
    """Write every row to two topics."""
    from pyspark.sql import functions as f

    return frame.select("key", "value", f.explode(f.array(f.lit(LEFT), f.lit(RIGHT))).alias("topic"))


def totals(frame: DataFrame) -> DataFrame:
    """Add up numbers by windows of ten; a window is written when a number after it was read.

    A number is its own event time in seconds, so the expected totals are simple.
    """
    from pyspark.sql import functions as f

    number = f.col("value").cast("string").cast("bigint")
    windows = (
        frame.select(number.alias("number"), f.timestamp_seconds(number).alias("at"))
        .withWatermark("at", "0 seconds")
        .groupBy(f.window("at", f"{WINDOW_S} seconds").alias("of"))
        .agg(f.count("*").alias("count"), f.sum("number").alias("total"))
    )
    first = f.unix_seconds("of.start").cast("string")
    text = f.concat_ws(" ", first, f.col("count").cast("string"), f.col("total").cast("string"))
    return both(windows.select(first.cast("binary").alias("key"), text.cast("binary").alias("value")))


def windows(frame: DataFrame) -> DataFrame:
    """Count and add up events by key and window, as ``testing.windows`` does in plain Python."""
    from pyspark.sql import functions as f

    part = f.split(f.col("value").cast("string"), " ")
    found = (
        frame.select(
            f.timestamp_seconds(part[0].cast("bigint")).alias("at"),
            part[1].alias("name"),
            part[2].cast("bigint").alias("amount"),
        )
        .withWatermark("at", f"{WATERMARK_S} seconds")
        .groupBy(f.window("at", f"{EVENT_WINDOW_S} seconds").alias("of"), "name")
        .agg(f.count("*").alias("count"), f.sum("amount").alias("total"))
    )
    first = f.unix_seconds("of.start").cast("string")
    text = f.concat_ws(" ", first, "name", f.col("count").cast("string"), f.col("total").cast("string"))
    return both(found.select(f.col("name").cast("binary").alias("key"), text.cast("binary").alias("value")))


PLANS: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {"both": both, "totals": totals, "windows": windows}


def start(
    spark: SparkSession, job: PipelineJob, transform: Callable[[DataFrame], DataFrame] | None = None
) -> StreamingQuery:
    """Start a job in an existing session; ``transform``: a plan without a name."""
    usual = {
        "subscribe": "in",
        "startingOffsets": "earliest",
        "groupId": "g",
        "maxOffsetsPerTrigger": "20",
        # Far above the rows of a batch: each segment has its own task, so that several attempts take part.
        "maxRecordsPerPartition": "1000000",
    }
    source = {name: value for name, value in {"metadata": job.url, **usual, **job.source}.items() if value}
    frame = spark.readStream.format("txnframework").options(**source).load()
    return (
        (transform or PLANS[job.plan])(frame)
        .writeStream.format("txnframework")
        .options(**{"metadata": job.url, "txnAppId": "app", **job.sink})
        .option("checkpointLocation", job.checkpoint)
        .outputMode(job.output_mode)
        .trigger(availableNow=True)
        .start()
    )


def scratch_of(job: PipelineJob) -> Path:
    """Return the folder of Spark's temporary files."""
    scratch = Path(job.checkpoint).parent / "spark"
    scratch.mkdir(exist_ok=True)
    return scratch


def open_session(job: PipelineJob) -> SparkSession:
    """Return a small Spark session that leaves no files outside of the checkpoint's directory, even if killed."""
    from pyspark.sql import SparkSession

    scratch = scratch_of(job)
    builder = (
        SparkSession.builder.master(job.master)
        .config(map={**WORKER_SETTINGS, **LOCAL_CHECKPOINT})
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={scratch}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if VARIABLE in os.environ:
        # Another process started the executors of a cluster.
        builder = builder.config(f"spark.executorEnv.{VARIABLE}", os.environ[VARIABLE])
    for name, value in job.conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def main() -> int:
    """Run the jobs in the session of the first one; the last lines of standard error give the reasons of failures."""
    jobs = msgspec.json.decode(sys.argv[1], type=list[PipelineJob])
    first, reasons = jobs[0], []
    exit_with_parent()
    require_this_interpreter()
    with worker_nursery(scratch_of(first)) if is_local(first.master) else contextlib.nullcontext():
        session = open_session(first)
        for query in [start(session, job) for job in jobs]:
            try:
                query.awaitTermination()
            except Exception as error:  # any error of Spark: its text is above, and its reason in one line at the end
                import traceback

                traceback.print_exc()
                reasons.append(extract_reason(str(error)) or type(error).__name__)
        if not reasons:
            session.stop()
    sys.stderr.writelines(f"{FAILURE}{reason}\n" for reason in reasons)
    return 1 if reasons else 0


if __name__ == "__main__":
    raise SystemExit(main())
